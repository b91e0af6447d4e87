//! docs/redis-cell.md: moving from redis-cell to this module, and which keys can go back. cl_throttle.rs tests its command.

use std::fs;
use std::process::Command;

use support::*;

#[test]
fn the_page_s_lines_list_the_keys_that_redis_cell_cannot_read() {
    let server = Server::builder().module_args(["cl-throttle", "yes"]).start();
    let mut conn = server.conn();
    conn.ints("CL.THROTTLE safe 15 30 60");
    conn.ints("CL.THROTTLE fraction 15 7 60");
    conn.ints("RL.THROTTLE debt 15 30 60 20 FORCE");
    conn.ints("RL.THROTTLE ban 0 30 60");
    conn.ints("RL.THROTTLE ban 0 30 60 1 BAN 1h");
    conn.ints("RL.WINDOW window 5 60");
    conn.cmd("SET other 1.5");
    let page = file("docs/redis-cell.md");
    let (_, after) = page.split_once("```bash\nstep=").unwrap();
    let (lines, _) = after.split_once("```").unwrap();
    // More keys than one step has.
    conn.cmd([
        "EVAL",
        "for i = 1, 2500 do redis.call('SET', 'safe:' .. i, '1795304056112952571') end",
        "0",
    ]);
    let cli = format!("{} -p {}", cli().display(), server.port());
    let lines = format!("step={}", lines.replace("redis-cli", &cli));
    let printed = run(Command::new("bash").args(["-c", &lines]));
    let mut keys: Vec<&str> = printed.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["ban", "debt", "fraction"], "{printed}");
}

#[test]
fn an_aof_of_redis_cell_s_calls_is_counted_as_of_the_restart() {
    let dir = std::env::temp_dir().join(format!("ratelimit-cell-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    // redis-cell replicates its calls as they came.
    let call = "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nu\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n";
    let aof = format!("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n{}", call.repeat(5));
    fs::write(dir.join("appendonly.aof"), aof).unwrap();
    let server = Server::builder().module_args(["cl-throttle", "yes"]).aof().dir(&dir).start();
    let left = server.conn().ints("RL.THROTTLE_RO u 15 30 60");
    assert!((11..=12).contains(&left[2]), "{left:?}");
    drop(server);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_live_key_of_redis_cell_goes_on_working() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.cmd("SET k 1700000003000000000 EX 3");
    assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1"), [0, 5, 2, -1, 3]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 1, -1, 4]);
    assert_eq!(conn.text("GET k"), "1700000004000000000");
    // For a quantity of -3 on a fresh key redis-cell stores a time in the past, without a TTL.
    conn.cmd("SET k 1699999997000000000");
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 4, -1, 1]);
    assert!((1_000..=2_000).contains(&conn.int("PTTL k")));
}
