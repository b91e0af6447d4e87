//! The wall clock of a server, held by the benchmark (see `clock.c`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// 2030-01-01T00:00:00Z in microseconds: where every held clock starts.
pub const START_US: i64 = 1_893_456_000_000_000;

/// Compiles `clock.c` into `directory`.
pub fn build_library(directory: &Path) -> io::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/decisions/clock.c");
    let library = directory.join("clock.so");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()?;
    if status.success() {
        Ok(library)
    } else {
        Err(io::Error::other("cc could not compile clock.c"))
    }
}

/// One server's clock: a file that the preloaded library maps.
pub struct Clock {
    file: File,
    pub path: PathBuf,
}

impl Clock {
    /// A clock that stands still at `START_US`.
    pub fn create(path: PathBuf) -> io::Result<Clock> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let clock = Clock { file, path };
        clock.file.write_all_at(&START_US.to_ne_bytes(), 0)?;
        clock.tick(0)?;
        Ok(clock)
    }

    /// What the clock shows, in microseconds since 1970.
    pub fn now_us(&self) -> io::Result<i64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(i64::from_ne_bytes(bytes))
    }

    /// Lets `tick_us` microseconds pass each time the server reads the clock; 0 stops it.
    pub fn tick(&self, tick_us: i64) -> io::Result<()> {
        self.file.write_all_at(&tick_us.to_ne_bytes(), 8)
    }
}
