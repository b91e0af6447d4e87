//! Tells the module which commit it is built from, as `RATELIMIT_COMMIT`: that of the environment, which `make package`
//! gives, or the one that git names, or `unknown`. Nothing else of the machine gets in, so that the same commit gives the
//! same bytes.

use std::path::Path;
use std::process::Command;

/// Digits of a commit that are enough to tell it from any other.
const DIGITS: usize = 12;

fn main() {
    println!("cargo:rerun-if-env-changed=RATELIMIT_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let commit = std::env::var("RATELIMIT_COMMIT").ok().or_else(of_git).unwrap_or_default();
    println!("cargo:rustc-env=RATELIMIT_COMMIT={}", shown(commit.trim()));
}

/// The commit in short, with what follows it after a hyphen: `1234567890ab-modified`.
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

/// The commit that is checked out here. `None` without git, and where this is an archive, perhaps unpacked in a folder of
/// another repository.
fn of_git() -> Option<String> {
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
