//! docs/redis-cell.md: moving from redis-cell to this module, and which keys can go back.

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
