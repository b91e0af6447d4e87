//! What fuzzing, valgrind and the soak found, each kept from coming back.

use support::*;

const NOW_US: i64 = 1_700_000_000_000_000;

/// Found by `make fuzz`, target reservation: such a member was read, but written back without its rule by RL.RENEW,
/// and by whatever healed it after a clock went back.
#[test]
fn a_reservation_whose_rule_has_no_room_is_refused_and_stays_as_it_is() {
    let (_server, mut conn) = Server::held();
    for end_us in [NOW_US + 1_000_000, NOW_US + 90_000_000] {
        let member = format!("#01:a:1:20000:{end_us}::{}s", "9".repeat(300));
        conn.cmd(["ZADD", "k", "-inf", &member]);
        for line in [
            "RL.RENEW k a LEASE 5000",
            "RL.APPLY k a",
            "RL.RELEASE k a",
            "RL.HELD k",
            "RL.ACQUIRE k 1 0",
            "RL.WINDOW k 1 60",
        ] {
            conn.refuses(line, "ERR the key's sorted set has an entry that ");
        }
        assert_eq!(conn.cmd("ZRANGE k 0 -1"), Value::Array(vec![Value::BulkString(member.into())]));
        conn.cmd("DEL k");
    }
}

/// Found by `make valgrind`: each refused MODULE LOAD kept a context of the server's, with 17 kB of buffers.
#[test]
fn a_module_that_is_refused_leaves_no_memory_behind() {
    const CYCLES: i64 = 100;
    const LEFT_BYTES: i64 = 4_000;
    let server = Server::builder().module(false).start();
    let mut conn = server.conn();
    let module = module_path();
    let mut refuse = |times| {
        for _ in 0..times {
            conn.refuses(format!("MODULE LOAD {module} lease 0"), LOAD_FAILED);
        }
        server.number("used_memory")
    };
    let before = refuse(10);
    let left = (refuse(CYCLES) - before) / CYCLES;
    assert!(left < LEFT_BYTES, "{left} bytes are left each time");
}
