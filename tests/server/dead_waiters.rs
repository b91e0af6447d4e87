//! What was granted to a client that died before it received the reply.

use std::thread::sleep;
use std::time::Duration;

use support::*;

/// What is given back is the oldest of what counts, so that it does not matter how much came later.
#[test]
fn what_the_dead_were_granted_is_given_back_however_much_came_later() {
    let server = Server::start();
    let mut conn = server.conn();
    for later in [0, 10, 200] {
        let call = "RL.WINDOW k 1000 1h";
        conn.pipeline(["DEL k", "RL.WINDOW k 1000 1h 1000"]);
        let (mut waiter, id) = server.wait_with_id("RL.WINDOW k 1000 1h 1 BLOCK 0");
        let mut lines = vec!["MULTI".to_owned(), "DEL k".to_owned(), format!("{call} 0")];
        lines.extend((0..later).map(|_| call.to_owned()));
        lines.extend([format!("CLIENT KILL ID {id}"), "EXEC".to_owned()]);
        conn.pipeline(lines);
        waiter.expect_closed();
        server.expect_no_waiting_calls();
        // It is given back from a timer.
        let remaining = || server.conn().ints(format!("{call} 0"))[2];
        eventually(SOON, || remaining() == 1000 - later);
        sleep(Duration::from_millis(50));
        assert_eq!(remaining(), 1000 - later);
    }
}
