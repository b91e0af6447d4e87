//! The clients in clients/: they send what clients/spec/cases.json says, and they work on a real server and a real
//! cluster. `make test-clients` runs all of it; without what it installs, the rest is skipped by name.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::*;

/// Where a client's tools are installed; none, which is said, if they are not.
fn installed(client: &str, mark: &str) -> Option<PathBuf> {
    let folder = clients_dir().join(client);
    if folder.join(mark).exists() {
        return Some(folder);
    }
    skip(&format!("clients/{client}"), "not installed in target/clients");
    None
}

/// Runs a client's tests on a server and a cluster of their own. What they skip is said on the terminal.
#[track_caller]
fn on_servers(command: &mut Command) {
    let server = Server::start();
    // Its clock stands still at the time that the tests of MemoryLimiter set.
    let held = Server::builder().with_clock_at(DOCS_US);
    let cluster = Cluster::of(3, 0);
    command.env("RATELIMIT_PORT", server.port().to_string());
    command.env("RATELIMIT_HELD_PORT", held.port().to_string());
    command.env("RATELIMIT_CLUSTER_PORT", cluster.node(0).port().to_string());
    let output = run(command);
    for line in output.lines().filter(|line| line.starts_with("skipped ")) {
        let _ = writeln!(io::stderr(), "{line}");
    }
    print!("{output}");
}

/// Runs test modules of the Python client with what is installed in a folder, and with more in the environment.
/// `everything` is what takes long as well, in `make test-clients`.
#[track_caller]
fn python_tests(folder: &str, modules: &str, everything: bool, more: &[(&str, &str)]) {
    let Some(tools) = installed(folder, "requirements.txt") else { return };
    if !has_engine("python") {
        return;
    }
    let mut command = Command::new(tools.join("bin/python"));
    command.current_dir(root().join("clients/python")).envs(more.iter().copied());
    command.env("PYTHONPATH", "src").env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-m", "unittest"]).args(modules.split(' ').map(|name| format!("tests.{name}")));
    command.env("RATELIMIT_SO", module_path());
    if !everything {
        command.env_remove("CLIENTS").env_remove("OUTAGES_TABLE");
    }
    // `make soak` says itself for how long.
    if std::env::var_os("LEASES_SECONDS").is_none() {
        command.env("LEASES_SECONDS", if all_clients() { "30" } else { "6" });
    }
    on_servers(&mut command);
}

#[test]
fn the_python_client_works_with_redis_py_and_valkey_py() {
    let modules =
        "test_calls test_several test_breaker test_http test_gateway test_numbers test_server test_readme";
    python_tests("python", modules, true, &[]);
}

#[test]
fn the_python_client_limits_the_requests_of_frameworks() {
    python_tests("python", "test_frameworks test_limits", true, &[]);
}

/// What the package `limits` tests of its own storage for Redis. It takes four minutes, as most of it sleeps.
#[test]
fn the_storage_for_limits_passes_the_tests_of_limits() {
    if !all_clients() {
        return skip("the tests of limits", "they take four minutes");
    }
    let archives = fs::read_dir(clients_dir().join("limits")).unwrap();
    let archive = archives
        .map(|it| it.unwrap().path().into_os_string().into_string().unwrap())
        .find(|it| it.ends_with(".gz"));
    let more = [("LIMITS_ARCHIVE", archive.as_deref().unwrap())];
    python_tests("python", "test_limits_upstream", true, &more);
}

/// It starts four proxies, which takes two minutes, and needs many packages.
#[test]
fn the_callback_of_litellm_keeps_limits_and_budgets() {
    if !all_clients() {
        return skip("the callback of LiteLLM", "LiteLLM is not installed");
    }
    python_tests("litellm", "test_litellm", true, &[("LITELLM_LOCAL_MODEL_COST_MAP", "True")]);
}

#[test]
fn the_python_client_answers_in_every_outage() {
    python_tests("python", "test_outages", true, &[]);
}

/// The command of a process of the Rust client that spends the limit of the proof: a test of its own.
fn rust_spender() -> String {
    let mut cargo = cargo("test");
    cargo.args(["--no-run", "--lib", "--package", "redis-ratelimit-client"]);
    let built = run(cargo.arg("--message-format=json"));
    let mut programs = built.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(String::from)
    });
    let program = programs.next_back().expect("a program of tests");
    format!("{program} --ignored --exact local::proof::a_process_spends_the_limit_of_the_proof")
}

#[test]
fn the_processes_of_the_python_client_never_spend_more_than_the_limit() {
    let Some(_) = installed("python", "requirements.txt") else { return };
    let mut others = vec![("PROOF_RUST", rust_spender())];
    if let Some(tools) = typescript() {
        let spender = tools.join("build/test/spender.js");
        others.push(("PROOF_NODE", format!("node {}", spender.display())));
    }
    let others: Vec<_> = others.iter().map(|(name, command)| (*name, command.as_str())).collect();
    python_tests("python", "test_leases test_proof", true, &others);
}

/// Builds the engine of a client's MemoryLimiter, unless it is up to date. False, and says so, if there is no compiler for
/// it.
pub(crate) fn has_engine(client: &str) -> bool {
    let script = root().join("scripts/build-engine.sh");
    let output = Command::new(script).arg(client).output().unwrap();
    let reason = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => true,
        // Cargo's own failures have another code.
        Some(1) => {
            skip(&format!("clients/{client}"), reason.lines().last().unwrap_or_default());
            false
        }
        _ => panic!("scripts/build-engine.sh {client}: {}\n{reason}", output.status),
    }
}

#[test]
fn the_memory_limiter_of_the_python_client_answers_as_a_server_does() {
    python_tests("python", "test_memory", true, &[]);
}

/// The oldest versions that the package allows, and the last of each major one.
#[test]
fn the_python_client_works_with_older_versions_of_its_libraries() {
    if !all_clients() {
        return skip("older versions of redis-py and valkey-py", "not installed");
    }
    let versions = file("clients/python/versions.txt");
    for version in versions.lines().filter(|line| !line.starts_with('#')) {
        let folder = format!("python-versions/{version}");
        python_tests(&folder, "test_calls test_server test_outages", false, &[]);
    }
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// Builds the TypeScript client below target/clients: the compiler looks for packages in the folders above a source file.
/// It is built once, for all tests.
pub(crate) fn typescript() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build_typescript).as_ref()
}

fn build_typescript() -> Option<PathBuf> {
    let tools = installed("typescript", "node_modules/installed.json")?;
    if !has_engine("typescript") {
        return None;
    }
    for stale in ["src", "test", "wasm", "dist", "build"] {
        let _ = fs::remove_dir_all(tools.join(stale));
    }
    copy(&root().join("clients/spec"), &clients_dir().join("spec"));
    let parts = "src test wasm README.md ADAPTERS.md package.json tsconfig.json tsconfig.cjs.json tsconfig.test.json";
    for part in parts.split(' ') {
        copy(&root().join("clients/typescript").join(part), &tools.join(part));
    }
    for script in ["build", "check"] {
        run(Command::new("npm").args(["run", "--silent", script]).current_dir(&tools));
    }
    Some(tools)
}

/// Node's test runner on files of the TypeScript client.
fn node(tests: &str) -> Option<Command> {
    let mut command = Command::new("node");
    command.args(["--test", "--test-reporter=spec"]);
    command.args(tests.split(' ').map(|test| format!("build/test/{test}.test.js")));
    // For the servers that the tests start by themselves.
    command.env("RATELIMIT_SO", module_path()).current_dir(typescript()?);
    command.env("RATELIMIT_CHECKOUT", root());
    Some(command)
}

#[test]
fn the_typescript_client_compiles_and_works_with_node_redis_and_ioredis() {
    let tests = "breaker calls headers http numbers package several server readme memory";
    node(tests).iter_mut().for_each(on_servers);
}

#[test]
fn the_typescript_client_follows_sentinels_and_clusters() {
    node("topologies").iter_mut().for_each(run_and_print);
}

#[test]
fn the_stores_of_the_typescript_client_count_as_their_interfaces_ask() {
    node("adapters").iter_mut().for_each(run_and_print);
}

#[test]
fn the_leases_of_the_typescript_client_hold() {
    node("local").iter_mut().for_each(run_and_print);
}

#[test]
fn the_typescript_client_answers_in_every_outage() {
    let Some(mut command) = node("outages") else { return };
    run_and_print(&mut command);
}
