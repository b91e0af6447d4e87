//! The folder of compiled time zones of the setting `zoneinfo`. Its rules replace the compiled ones of the same name. A file
//! is read when its zone is first named: 4 kB, once, so that no call is held up by more.

use crate::redis::guard::log;
use crate::redis::under_lock::UnderLock;
use engine::calendar::{compiled_release, ZoneRules};
use std::ffi::{CString, OsStr};
use std::fs::{metadata, File};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most bytes of a file that are read. The largest of the IANA database has 4 kB.
const MAX_LEN: u64 = 65_536;

/// The folder, or empty.
static FOLDER: UnderLock<Vec<u8>> = UnderLock::new(Vec::new);

/// The release of the rules in the folder, or of the compiled ones.
static RELEASE: UnderLock<String> = UnderLock::new(|| compiled_release().into());

/// Returns the folder. Empty if there is none.
pub fn folder() -> Vec<u8> {
    FOLDER.with(|folder| folder.clone())
}

/// Changes the folder. Returns whether it was another.
///
/// # Errors
///
/// A text that says which values are allowed. Nothing changes then.
pub fn set_folder(new: &[u8]) -> Result<bool, String> {
    let is_path = new.starts_with(b"/") && !new.contains(&0);
    if !is_path && !new.is_empty() {
        return Err("must be the absolute path of a folder, or empty".into());
    }
    let is_changed = FOLDER.replace(new.to_vec()) != new;
    if is_changed {
        RELEASE.replace(match new {
            [] => compiled_release().into(),
            _ => release_in(Path::new(OsStr::from_bytes(new))).unwrap_or_else(|| "unknown".into()),
        });
    }
    Ok(is_changed)
}

/// Returns the release of the IANA database in use, such as `2026e`, or `unknown` if the folder does not say.
pub fn release() -> String {
    RELEASE.with(|release| release.clone())
}

/// Returns the release that the first line of `tzdata.zi` names, `# version 2026e`.
fn release_in(folder: &Path) -> Option<String> {
    let bytes = read(&folder.join("tzdata.zi")).ok()?;
    let line = bytes.strip_prefix(b"# version ")?.split(|byte| *byte == b'\n').next()?;
    let is_release = line.len() <= 16 && line.iter().all(u8::is_ascii_graphic);
    is_release.then(|| String::from_utf8_lossy(line).into_owned())
}

/// Returns the rules of a zone in the folder. `None` if there are none, which is logged. The name is one of the compiled
/// ones, so that no client can choose a path.
pub fn rules(name: &str) -> Option<ZoneRules> {
    let folder = folder();
    if folder.is_empty() {
        return None;
    }
    let path: PathBuf = [OsStr::from_bytes(&folder), OsStr::new(name)].iter().collect();
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
