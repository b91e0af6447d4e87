//! RL.INFO: what a key holds.

use support::*;

/// The fields of a reply, as `name=value` in their order.
fn info(conn: &mut Conn, key: &str) -> String {
    let fields = flat(&conn.cmd(["RL.INFO", key]));
    fields.chunks(2).map(|pair| pair.join("=")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_missing_key_has_no_fields() {
    let (server, mut conn) = Server::with_held_clock();
    assert_eq!(info(&mut conn, "none"), "");
    assert_eq!(conn.cmd("RL.INFO none"), Value::Array(vec![]));
    if !server.version().lacks("maps in replies of modules", (7, 0)) {
        assert_eq!(server.conn_resp3().cmd("RL.INFO none"), Value::Map(vec![]));
    }
}

#[test]
fn a_window_shows_its_events_and_reservations() {
    let (server, mut conn) = Server::with_held_clock();
    conn.cmd("RL.WINDOW w 5 60 3");
    server.clock().advance_ms(1_500);
    conn.cmd("RL.WINDOW w 5 60 2");
    // A denied call of the same microsecond would share the entry, and could not be distinguished any more.
    server.clock().advance_ms(100);
    conn.cmd("RL.WINDOW w 5 60 2 COUNTDENIED");
    server.clock().advance_ms(1_000);
    assert_eq!(
        info(&mut conn, "w"),
        "kind=window events=7 denied=2 entries=3 oldest=2600 newest=1000 held=0 reservations=0 \
         ban=0 waiting=0 ttl=61300"
    );
    conn.cmd("RL.ACQUIRE s 9 0 4 LEASE 5000");
    conn.cmd("RL.ACQUIRE s 9 0 1 LEASE 1000");
    server.clock().advance_ms(1_000);
    // What has lapsed is not held any more.
    assert_eq!(
        info(&mut conn, "s"),
        "kind=window events=0 denied=0 entries=0 oldest=-1 newest=-1 held=4 reservations=1 ban=0 \
         waiting=0 ttl=4900"
    );
}
