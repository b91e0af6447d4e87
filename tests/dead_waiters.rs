//! What was granted to a client that died before it was told.

mod support;

use std::thread::sleep;
use std::time::Duration;

use support::*;

/// The server rewrites the entries that came after the event that it takes back. Where they are many it lets the event
/// stand instead, so that a death costs little.
#[test]
fn an_event_of_the_dead_is_taken_back_where_few_came_after_it_and_stays_where_many_did() {
    let server = Server::start();
    let mut conn = server.conn();
    // From 7.2 on a transaction is one instant, so however many come in it they are in one entry.
    let is_one_entry = server.version().is_from(7, 2);
    for (later, stays) in [(10, 0), (60, 0), (70, 1), (200, 1)] {
        let counted = if is_one_entry { later } else { later + stays };
        let call = "RL.WINDOW k 1000 1h";
        conn.pipeline(["DEL k", "RL.WINDOW k 1000 1h 1000"]);
        let mut waiter = server.conn();
        let id = waiter.id();
        let mut waiter = server.wait_on(waiter, "RL.WINDOW k 1000 1h 1 BLOCK 0");
        let mut lines = vec!["MULTI".to_owned(), "DEL k".to_owned(), format!("{call} 0")];
        lines.extend((0..later).map(|_| call.to_owned()));
        lines.extend([format!("CLIENT KILL ID {id}"), "EXEC".to_owned()]);
        conn.pipeline(lines);
        waiter.expect_closed();
        server.expect_nobody_waits();
        // It is given back from a timer, or not at all.
        sleep(Duration::from_millis(50));
        assert_eq!(conn.ints(format!("{call} 0"))[2], 1000 - counted, "{later} came later");
    }
}
