//! docs/redis-cell.md: moving from redis-cell to this module, and which rates can go back.

use std::fs;
use std::process::Command;

use support::*;

const MINUTE: &str = "60";
const HOUR: &str = "3600";

fn page() -> String {
    file("docs/redis-cell.md")
}

fn with_cl_throttle() -> Server {
    Server::builder().module_args(["cl-throttle", "yes"]).start()
}

/// The numbers of the page between two texts.
fn numbers(page: &str, from: &str, to: &str) -> Vec<i64> {
    let (_, after) = page.split_once(from).unwrap_or_else(|| panic!("{from:?} is not on the page"));
    let (part, _) = after.split_once(to).unwrap_or_else(|| panic!("{to:?} is not after {from:?}"));
    part.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Calls a key at this rate in every way that CL.THROTTLE knows. Is true if it ever holds more than an integer.
fn leaves_more_than_an_integer(conn: &mut Conn, count: i64, period: &str) -> bool {
    conn.cmd("DEL k");
    [1, 1, 7, -1, 1, 16, 2].into_iter().any(|quantity| {
        conn.ints(format!("CL.THROTTLE k 15 {count} {period} {quantity}"));
        let value = text(&conn.cmd("GET k"));
        value.parse::<u64>().is_err()
    })
}

#[test]
fn the_rates_that_the_page_calls_safe_store_integers_and_the_others_do_not() {
    let server = with_cl_throttle();
    let mut conn = server.conn();
    let page = page();
    let safe = numbers(&page, "number of nanoseconds are safe:", "and others in 60 seconds");
    let unsafe_ones = numbers(&page, "but not", "In an hour");
    let in_an_hour = numbers(&page, "In an hour", "are safe");
    assert!(safe.len() >= 20 && unsafe_ones.len() >= 3 && in_an_hour.len() >= 3);
    for count in safe {
        assert!(!leaves_more_than_an_integer(&mut conn, count, MINUTE), "{count} in a minute");
    }
    for count in unsafe_ones {
        assert!(leaves_more_than_an_integer(&mut conn, count, MINUTE), "{count} in a minute");
    }
    for count in in_an_hour {
        assert!(!leaves_more_than_an_integer(&mut conn, count, HOUR), "{count} in an hour");
    }
}

#[test]
fn the_page_s_lines_list_the_keys_that_redis_cell_cannot_read() {
    let server = with_cl_throttle();
    let mut conn = server.conn();
    conn.ints("CL.THROTTLE safe 15 30 60");
    conn.ints("CL.THROTTLE fraction 15 7 60");
    conn.ints("RL.THROTTLE debt 15 30 60 20 FORCE");
    conn.ints("RL.THROTTLE ban 0 30 60");
    conn.ints("RL.THROTTLE ban 0 30 60 1 BAN 1h");
    conn.ints("RL.WINDOW window 5 60");
    conn.cmd("SET other 1.5");
    let page = page();
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
