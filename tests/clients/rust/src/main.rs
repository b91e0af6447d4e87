//! Runs every case and every way to wait with fred and with redis-rs on tokio: clients PORT_WITH_HELD_CLOCK PORT

#[path = "../../cases.rs"]
mod cases;
mod fred_client;
mod redis_client;

use std::env;
use std::future::Future;
use std::time::{Duration, Instant};

use cases::{calls, calls_from_scripts, check, check_some, without_errors};
use serde_json::{json, Value as Json};

/// What both clients can do. An error is `{"error": text}`.
trait Client: Clone + Send + Sync + 'static {
    const NAME: &str;
    /// Whether EXEC answers the other replies when one is an error.
    const ERRORS_IN_EXEC: bool;
    fn connect(port: u16, resp3: bool) -> impl Future<Output = Self> + Send;
    /// Another connection, for calls that wait.
    fn another(&self) -> impl Future<Output = Self> + Send;
    fn call(&self, words: Vec<String>) -> impl Future<Output = Json> + Send;
    fn pipeline(&self, calls: Vec<Vec<String>>) -> impl Future<Output = Vec<Json>> + Send;
    fn transaction(&self, calls: Vec<Vec<String>>) -> impl Future<Output = Vec<Json>> + Send;
    /// Closes the connection, whatever waits on it.
    fn close(self) -> impl Future<Output = ()> + Send;

    fn line(&self, line: &str) -> impl Future<Output = Json> + Send {
        self.call(line.split(' ').map(str::to_owned).collect())
    }
}

async fn every_case<C: Client>(port: u16, resp3: bool) {
    let client = C::connect(port, resp3).await;
    for mode in ["plain", "pipelined", "in a transaction", "from a script"] {
        client.line("FLUSHALL").await;
        let mut replies = Vec::new();
        match mode {
            "plain" => {
                for words in calls() {
                    replies.push(client.call(words).await);
                }
            }
            "pipelined" => replies = client.pipeline(calls()).await,
            "in a transaction" if !C::ERRORS_IN_EXEC => {
                let (some, all) = (without_errors(), calls());
                let calls = some.iter().map(|&at| all[at].clone()).collect();
                let replies = client.transaction(calls).await;
                check_some(&format!("{}, RESP3 {resp3}, {mode}", C::NAME), &some, &replies);
                continue;
            }
            "in a transaction" => replies = client.transaction(calls()).await,
            _ => {
                for words in calls_from_scripts() {
                    replies.push(client.call(words).await);
                }
            }
        }
        check(&format!("{}, RESP3 {resp3}, {mode}", C::NAME), &replies);
    }
}

/// Waits until this many calls wait, long before one of a minute times out.
async fn until_waiting<C: Client>(client: &C, count: u32) {
    let begin = Instant::now();
    let field = format!("ratelimit_waiting:{count}\\r");
    while !client.line("INFO ratelimit").await.to_string().contains(&field) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}: not {count} wait", C::NAME);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A call that waits holds up all others on its connection, so it has one of its own.
async fn waiting<C: Client>(port: u16, resp3: bool) {
    let client = C::connect(port, resp3).await;
    let own = client.another().await;
    client.line("FLUSHALL").await;
    let wait = |line: &'static str| {
        let own = own.clone();
        async move { own.line(line).await }
    };

    // Granted when its turn comes.
    let begin = Instant::now();
    client.line("RL.THROTTLE mail 0 10 1").await;
    let reply = wait("RL.THROTTLE mail 0 10 1 BLOCK 60000").await;
    let took = begin.elapsed().as_millis();
    assert!(reply[0] == 0 && took >= 99, "{reply} after {took} ms");

    // Denied when its time is up, later than any default timeout of a client.
    assert_eq!(client.line("RL.ACQUIRE job 1 0 ID first").await[5], "first");
    let begin = Instant::now();
    let reply = wait("RL.ACQUIRE job 1 0 BLOCK 700").await;
    let took = begin.elapsed().as_millis();
    assert!(reply[0] == 2 && took >= 699, "{reply} after {took} ms");

    // Granted as soon as somebody gives back.
    let second = tokio::spawn(wait("RL.ACQUIRE job 1 0 ID second LEASE 60000 BLOCK 60000"));
    until_waiting(&client, 1).await;
    assert_eq!(client.line("RL.RELEASE job first").await, 1);
    assert_eq!(second.await.unwrap()[5], "second");

    // A client that hangs up takes nothing when its turn would have come.
    let third = tokio::spawn(wait("RL.ACQUIRE job 1 0 BLOCK 60000"));
    until_waiting(&client, 1).await;
    third.abort();
    let _ = third.await;
    // Giving up on the reply is not enough.
    tokio::time::sleep(Duration::from_millis(100)).await;
    until_waiting(&client, 1).await;
    own.close().await;
    until_waiting(&client, 0).await;
    assert_eq!(client.line("RL.RELEASE job second").await, 1);
    assert_eq!(client.line("RL.HELD job").await, json!([]));
    client.close().await;
}

#[tokio::main]
async fn main() {
    let ports: Vec<u16> = env::args().skip(1).map(|port| port.parse().unwrap()).collect();
    let [held, port] = ports[..] else { panic!("two ports") };
    for resp3 in [false, true] {
        every_case::<redis_client::Redis>(held, resp3).await;
        waiting::<redis_client::Redis>(port, resp3).await;
        every_case::<fred_client::Fred>(held, resp3).await;
        waiting::<fred_client::Fred>(port, resp3).await;
    }
    println!("{} cases with fred and redis-rs", calls().len());
}
