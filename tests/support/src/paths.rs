use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The project's folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("tests/support lies in the project")
}

/// Reads a text file of the project.
#[track_caller]
pub fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The folder in which cargo builds. This program is in its debug/deps or release/deps.
pub fn target_dir() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    program.ancestors().nth(3).expect("a program in target/debug/deps").to_owned()
}
