//! A shaper: mails leave one by one, ten a second over all processes that run it, in the order in which they asked.
//!
//!     cargo run --example shaper -- anna@example.org bert@example.org carl@example.org
//!
//! REDIS_URL (redis://127.0.0.1:6379) may be set. In a project of your own: cargo add redis
//! If Redis cannot be asked, no mail is sent.

use std::env;
use std::error::Error;
use std::time::Instant;

// In this repository's Cargo.toml the crate redis goes by another name.
use redis_client as redis;

/// A bucket of one: no burst, `COUNT` in each `PERIOD`.
const MAX_BURST: u32 = 0;
const COUNT: u32 = 10;
const PERIOD: &str = "1s";
const PATIENCE_MS: u32 = 30_000;

/// Waits until it is this caller's turn.
fn wait_for_turn(conn: &mut redis::Connection) -> Result<(), Box<dyn Error>> {
    let (limited, _, _, retry_after, _): (i64, i64, i64, i64, i64) = redis::cmd("RL.THROTTLE")
        .arg("mail")
        .arg(MAX_BURST)
        .arg(COUNT)
        .arg(PERIOD)
        .arg("BLOCK")
        .arg(PATIENCE_MS)
        .query(conn)?;
    match limited {
        0 => Ok(()),
        _ => {
            Err(format!("not its turn within {PATIENCE_MS} ms: try again in {retry_after} s")
                .into())
        }
    }
}

fn send(address: &str) {
    println!("to {address}");
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let mut conn = redis::Client::open(url)?.get_connection()?;
    let begin = Instant::now();
    for address in env::args().skip(1) {
        wait_for_turn(&mut conn)?;
        print!("{:6.3} s: ", begin.elapsed().as_secs_f64());
        send(&address);
    }
    Ok(())
}
