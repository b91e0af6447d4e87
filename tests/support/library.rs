use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

/// The shared library made of a piece of C, built at its first use.
pub fn library(name: &str, source: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = dir.join(format!("{name}-{:016x}.so", hash.finish()));
    if !library.exists() {
        // Other test binaries may be at it too: each builds its own and renames it into place.
        let draft = dir.join(format!("{name}-{}.tmp", process::id()));
        let mut cc = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-x", "c", "-", "-o"])
            .arg(&draft)
            .stdin(Stdio::piped())
            .spawn()
            .expect("start cc");
        cc.stdin.take().unwrap().write_all(source.as_bytes()).expect("hand a source to cc");
        assert!(cc.wait().expect("wait for cc").success(), "cc failed on {name}.c");
        fs::rename(&draft, &library).expect("put a library in place");
    }
    library
}
