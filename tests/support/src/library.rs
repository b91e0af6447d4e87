use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::target_dir;

/// The path of a module for tests; module.c says what its load arguments make it do.
pub fn test_module() -> String {
    let library = library("module", include_str!("module.c"));
    library.into_os_string().into_string().expect("a path of plain text")
}

/// The shared library made of a piece of C, built at its first use.
pub(super) fn library(name: &str, source: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let dir = target_dir().join("tmp");
    fs::create_dir_all(&dir).expect("create target/tmp");
    let library = dir.join(format!("{name}-{:016x}.so", hash.finish()));
    if !library.exists() {
        // Other tests may be at it too: each builds its own and renames it into place.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let draft = dir.join(format!("{name}-{}-{number}.tmp", process::id()));
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
