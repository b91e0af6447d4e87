//! What is left when the module goes.

mod support;
use support::*;

/// Of a cycle. The server keeps nothing of a module that is unloaded; a list of the module's that is forgotten is larger.
const LEFT_BYTES: i64 = 16;

#[test]
fn a_module_that_is_unloaded_takes_its_memory_along() {
    const CYCLES: i64 = 40;
    // A busy server would remember each load as slow.
    let server = Server::builder().config("slowlog-log-slower-than -1").start();
    let mut conn = server.conn();
    let module = module_path();
    let mut cycle = || {
        conn.cmd("RL.THROTTLE a 1 1 60");
        conn.cmd("RL.ACQUIRE s 1 0");
        conn.cmd("RL.ACQUIRE s 1 0 BLOCK 5");
        for zone in ["Asia/Shanghai", "Europe/Lisbon", "America/New_York", "+08:00"] {
            conn.cmd(format!("RL.WINDOW w 1 1d FIXED TZ {zone}"));
        }
        conn.cmd("FLUSHALL");
        eventually(std::time::Duration::from_secs(20), || {
            conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay
        });
        conn.cmd(format!("MODULE LOAD {module}"));
    };
    // The first ones fill buffers of the server.
    (0..5).for_each(|_| cycle());
    let used = || server.info("used_memory").unwrap().parse::<i64>().unwrap();
    // Buffers of clients grow and shrink when the server likes, so the one in the middle counts.
    let mut left: Vec<_> = (0..5)
        .map(|_| {
            let before = used();
            (0..CYCLES).for_each(|_| cycle());
            (used() - before) / CYCLES
        })
        .collect();
    left.sort();
    assert!(left[2] < LEFT_BYTES, "{left:?} bytes are left each time");
}
