use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// The shared library made of a piece of C, `tests/support/<name>.c`, built at its first use.
pub fn library(name: &str, source: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = dir.join(format!("{name}-{:016x}.so", hash.finish()));
    if !library.exists() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/support/{name}.c"));
        // Other test binaries may be at it too: each builds its own and renames it into place.
        let draft = dir.join(format!("{name}-{}.tmp", process::id()));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o"])
            .args([&draft, &file])
            .status();
        assert!(built.expect("cc is needed for tests").success(), "cc failed on {name}.c");
        fs::rename(&draft, &library).expect("put a library in place");
    }
    library
}
