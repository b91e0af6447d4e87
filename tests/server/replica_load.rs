//! A replica that takes over its master's data set as a whole, while it still serves the old one.

use support::*;

#[test]
fn a_replica_with_the_module_may_load_next_to_its_old_data() {
    if Version::under_test().lacks("loading while old data is served", (7, 0)) {
        return;
    }
    let master = Server::builder().config("repl-diskless-sync yes").start();
    master.conn().cmd("RL.WINDOW k 5 1h");
    // One module that does not bear it keeps the whole server from it.
    let replica = Server::builder().config("repl-diskless-load swapdb").replica_of(&master).start();
    wait_for_sync(&master, &replica);
    let log = replica.log();
    assert!(!log.contains("Skipping diskless-load"), "{log}");
    assert!(log.contains("to parser"), "{log}");
    // It took over what it loaded, and goes on from there.
    let mut conn = replica.conn();
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 4]);
    master.conn().cmd("RL.WINDOW k 5 1h");
    wait_for_sync(&master, &replica);
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 3]);
}
