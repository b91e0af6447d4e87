//! A shaper: mails leave one by one, ten a second over all processes that run it, in the order in which they asked.
//!
//!     cargo run --example shaper -- anna@example.org bert@example.org carl@example.org
//!
//! REDIS_URL (redis://127.0.0.1:6379) may be set. It uses the client in clients/rust.
//! If Redis cannot be asked, no mail is sent.

use std::env;
use std::error::Error;
use std::time::{Duration, Instant};

use redis_ratelimit_client::{Limiter, Rate};

const PATIENCE: Duration = Duration::from_secs(30);

fn send(address: &str) {
    println!("to {address}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let limiter = Limiter::open(url)?;
    // A bucket of one: no burst.
    let rate = Rate::per("10/s")?.capacity(1)?;
    let begin = Instant::now();
    for address in env::args().skip(1) {
        let turn = limiter.take("mail", &rate).block(PATIENCE).await?;
        if !turn.is_allowed() {
            let wait = turn.retry_after.unwrap_or_default();
            return Err(format!("not its turn within {PATIENCE:?}: try again in {wait:?}").into());
        }
        print!("{:6.3} s: ", begin.elapsed().as_secs_f64());
        send(&address);
    }
    Ok(())
}
