//! The harness itself, without the module's commands.

use std::fs;

use support::*;

fn is_running(pid: i32) -> bool {
    // Under a script the server is not our child, and its zombie may remain.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_server_is_killed_and_its_directory_removed_on_drop() {
    let server = Server::start();
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    assert!(is_running(pid) && dir.exists());
    drop(server);
    assert!(!is_running(pid));
    assert!(!dir.exists());
}

#[test]
fn a_server_that_died_fails_its_test() {
    let mut server = Server::start();
    server.conn().send("SHUTDOWN NOSAVE");
    eventually(SOON, || !server.is_running());
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(server)));
    assert!(died.is_err());
}
