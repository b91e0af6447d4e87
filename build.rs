//! Passes the commit of the build to the module as `RATELIMIT_COMMIT`: from the environment, where `make package` sets it,
//! or else from git, or `unknown`. Nothing else of this machine becomes part of the build, so that the same commit gives the
//! same bytes.

use std::path::Path;
use std::process::Command;

/// The number of digits that identify a commit.
const DIGITS: usize = 12;

fn main() {
    println!("cargo:rerun-if-env-changed=RATELIMIT_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let commit = std::env::var("RATELIMIT_COMMIT").ok().or_else(checked_out).unwrap_or_default();
    println!("cargo:rustc-env=RATELIMIT_COMMIT={}", shown(commit.trim()));
}

/// Shortens a commit, and keeps the text after a hyphen: `1234567890ab-modified`.
fn shown(commit: &str) -> String {
    let (digits, rest) = commit.split_at(commit.find('-').unwrap_or(commit.len()));
    let shown: String = digits.chars().take(DIGITS).chain(rest.chars().take(DIGITS)).collect();
    let is_plain = shown.chars().all(|one| one.is_ascii_alphanumeric() || one == '-');
    if is_plain && !shown.is_empty() {
        shown
    } else {
        "unknown".into()
    }
}

/// Returns the commit that is checked out here. `None` without git, or if this is an unpacked archive, even in the folder
/// of another repository.
fn checked_out() -> Option<String> {
    let own = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&own).canonicalize().ok()? {
        return None;
    }
    // A line is added to this file whenever another commit is checked out.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|it| it.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
