//! What is left when the module goes.

mod support;
use support::*;

/// What the server itself keeps.
const LEFT_BYTES: i64 = 1_000;

#[test]
fn a_module_that_is_unloaded_takes_its_memory_along() {
    // So many that a connection's buffer of 16 kB, which comes and goes, matters little.
    const CYCLES: i64 = 100;
    let server = Server::start();
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
    let before = used();
    (0..CYCLES).for_each(|_| cycle());
    let left = (used() - before) / CYCLES;
    println!("{left} bytes are left each time");
    assert!(left < LEFT_BYTES, "{left} bytes are left each time");
}
