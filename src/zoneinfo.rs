//! The folder of compiled time zones of the setting `zoneinfo`. Its rules replace the compiled ones of the same name. A file
//! is read once, when its zone is first named: 4 kB, so no call waits for more than that.

use crate::redis::guard::log;
use engine::calendar::{compiled_release, ZoneRules};
use std::ffi::{CString, OsStr};
use std::fs::{metadata, File};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most bytes of a file that are read. The largest of the IANA database has 4 kB.
const MAX_LEN: u64 = 65_536;

#[derive(Clone)]
pub struct Zoneinfo {
    /// Its absolute path. Empty if there is none.
    pub folder: Vec<u8>,
    /// The release of the rules in it, such as `2026e`, or `unknown` if it does not say. Without a folder, the release of
    /// the compiled rules.
    pub release: String,
}

impl Default for Zoneinfo {
    fn default() -> Zoneinfo {
        Zoneinfo { folder: Vec::new(), release: compiled_release().into() }
    }
}

impl Zoneinfo {
    /// Opens a folder. Empty for the compiled rules.
    ///
    /// # Errors
    ///
    /// A text that says which values are allowed.
    pub fn open(folder: &[u8]) -> Result<Zoneinfo, String> {
        if folder.is_empty() {
            return Ok(Zoneinfo::default());
        }
        if !folder.starts_with(b"/") || folder.contains(&0) {
            return Err("must be the absolute path of a folder, or empty".into());
        }
        let release = release_in(Path::new(OsStr::from_bytes(folder)));
        let release = release.unwrap_or_else(|| "unknown".into());
        Ok(Zoneinfo { folder: folder.to_vec(), release })
    }
}

/// Returns the release that the first line of `tzdata.zi` names, `# version 2026e`.
fn release_in(folder: &Path) -> Option<String> {
    let bytes = read(&folder.join("tzdata.zi")).ok()?;
    let line = bytes.strip_prefix(b"# version ")?.split(|byte| *byte == b'\n').next()?;
    let is_release = line.len() <= 16 && line.iter().all(u8::is_ascii_graphic);
    is_release.then(|| String::from_utf8_lossy(line).into_owned())
}

/// Returns the rules of a zone in a folder. `None` if there are none, which is logged. The name is one of the compiled ones,
/// so that no client can choose a path.
pub fn rules(folder: &[u8], name: &str) -> Option<ZoneRules> {
    if folder.is_empty() {
        return None;
    }
    let path: PathBuf = [OsStr::from_bytes(folder), OsStr::new(name)].iter().collect();
    let broken = || Error::new(ErrorKind::InvalidData, "not a compiled time zone");
    let parsed = read(&path).and_then(|bytes| ZoneRules::parse(name, &bytes).ok_or_else(broken));
    match parsed {
        Ok(rules) => Some(rules),
        Err(why) => {
            let path = path.as_os_str().as_bytes().escape_ascii();
            let line = format!(
                "redis-ratelimit: {path}: {why}. The compiled rules of {name}, release {}, hold",
                compiled_release()
            );
            // The line has no NUL.
            log(None, c"warning", &CString::new(line).unwrap_or_default());
            None
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    // A pipe would hold up the server.
    if !metadata(path)?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_LEN).read_to_end(&mut bytes)?;
    Ok(bytes)
}
