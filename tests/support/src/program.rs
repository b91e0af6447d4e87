use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output};

use super::{root, target_dir};

/// The programs that need what scripts/install-clients.sh installs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Language {
    Python,
    Node,
}

/// Is true in `make test-clients`, where all languages have to be there. Otherwise a test of a missing one is skipped.
pub fn all_clients() -> bool {
    env::var_os("CLIENTS").is_some_and(|value| value == "all")
}

/// Prints a note that a test is skipped; panics in `make test-clients`.
pub fn skip(what: &str, why: &str) {
    assert!(!all_clients(), "{what}: {why}");
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // Not eprintln, which the test's output would swallow. scripts/test.sh counts the lines.
    let line = format!("skipped {test}: {what}: {why}: make test-clients\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// target/clients.
pub fn clients_dir() -> PathBuf {
    target_dir().join("clients")
}

impl Language {
    /// The command that runs a script of tests/clients or examples; none, with a note, if its language is not installed.
    pub fn script(self, path: &str) -> Option<Command> {
        let clients = clients_dir();
        let (installed, mut command) = match self {
            Language::Python => {
                let mut command = Command::new(clients.join("venv/bin/python"));
                command.args(["-u", "-B"]).arg(root().join(path));
                command.env("PYTHONPATH", root().join("clients/python/src"));
                (clients.join("venv/requirements.txt"), command)
            }
            Language::Node => {
                // By its link below target/clients, so that node finds the packages there.
                let link = match path.strip_prefix("tests/clients/") {
                    Some(name) => clients.join("scripts").join(name),
                    None => clients.join(path),
                };
                let mut command = Command::new("node");
                command.args(["--preserve-symlinks", "--preserve-symlinks-main"]).arg(link);
                (clients.join("node_modules/installed.json"), command)
            }
        };
        if !installed.exists() {
            skip(path, &format!("target/clients has nothing for {self:?}"));
            return None;
        }
        command.current_dir(clients);
        Some(command)
    }
}

/// A cargo command for the project, with what Cargo.lock says.
pub fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args([command, "--quiet", "--locked"]).current_dir(root());
    cargo
}

/// A cargo command for a crate outside the workspace, which has more dependencies and is built below target/clients; none,
/// with a note, except in `make test-clients`.
pub fn cargo_apart(command: &str, folder: &str) -> Option<Command> {
    if !all_clients() {
        skip(folder, "not built");
        return None;
    }
    let mut cargo = cargo(command);
    cargo.arg("--manifest-path").arg(root().join(folder).join("Cargo.toml"));
    cargo.arg("--target-dir").arg(clients_dir().join("cargo"));
    Some(cargo)
}

/// Runs a program to its end and returns what it printed; one that fails fails the test.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let Output { status, stdout, stderr } = output;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{}{}", text(&stdout), text(&stderr));
    text(&stdout)
}

/// Does what `run` does, and prints the output.
#[track_caller]
pub fn run_and_print(command: &mut Command) {
    print!("{}", run(command));
}

/// A program that runs during the test. It is killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts it.
    #[track_caller]
    pub fn start(command: &mut Command) -> Running {
        Running(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
