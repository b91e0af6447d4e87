//! What waiting costs everybody else: how long the server answers nobody while it grants or dismisses many, what a key's
//! name does to the time of a hand-over, and what waiting costs while nothing happens.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Batch, BenchError, Client, Result, ServerReply};
use crate::longest_calls::reserve;
use crate::report::{Column, Table};
use crate::rounds::join;
use crate::server::{cpu_us, info, Host};
use crate::workload::allowed;

/// How many wait, hold and hand over.
pub struct HandoverSize {
    /// Granted by one release.
    pub granted: usize,
    /// Whose time is up at the same moment, and reservations in their key.
    pub dismissed: usize,
    pub beside: usize,
    /// In a line in which each hands over to the next.
    pub in_line: usize,
    /// Semaphores with one waiter each, and reservations in each of them.
    pub semaphores: usize,
    pub held_in_each: usize,
}

pub const FULL: HandoverSize = HandoverSize {
    granted: 10_000,
    dismissed: 2_000,
    beside: 20_000,
    in_line: 8_000,
    semaphores: 1_000,
    held_in_each: 1_000,
};

pub const QUICK: HandoverSize = HandoverSize {
    granted: 2_000,
    dismissed: 500,
    beside: 2_000,
    in_line: 1_000,
    semaphores: 200,
    held_in_each: 200,
};

/// Hand-overs that are measured for each key.
const HAND_OVERS: usize = 100;

/// A row is given up where its reservations take longer to make.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the idle server is watched.
const IDLE: Duration = Duration::from_secs(5);

/// Keys by their names: one without anything special, and such as have no usable hash tag, an empty one or one at the
/// beginning.
pub const KEYS: [&str; 5] = ["plain", "", "a}b", "{}z", "{q}x"];

pub const GRANTED: &str = "longest time without a PONG: waiters granted by one release";
pub const DISMISSED: &str = "longest time without a PONG: waiters whose time is up at once";

/// The name of the row about a key.
pub fn handed_over(key: &str) -> String {
    format!("a hand-over on the key \"{key}\"")
}

/// The name of the row about an idle server.
pub fn idle(is_full: bool) -> String {
    format!(
        "a second of idle CPU, semaphores with {}",
        if is_full { "many held" } else { "one held" }
    )
}

/// A call with a key of any bytes. `{}` in the words stands for the key.
fn call(key: &str, words: &str) -> Batch {
    Batch::words(words.split(' ').map(|word| if word == "KEY" { key } else { word }))
}

/// Connections that each wait with the same words, in which `#` stands for the number of the connection.
fn wait_in_line(host: &Host, key: &str, words: &str, number: usize) -> Result<Vec<Client>> {
    let mut control = host.connect()?;
    let mut clients = Vec::with_capacity(number);
    for waiter in 0..number {
        let mut client = host.connect()?;
        client.send(&call(key, &words.replace('#', &waiter.to_string())))?;
        // Answered only after the command before it was taken up, so that the order is known.
        control.call("PING")?;
        clients.push(client);
    }
    let started = Instant::now();
    while info(&mut control, "ratelimit", "ratelimit_waiting")? < number as f64 {
        if started.elapsed() > Duration::from_secs(10) {
            return Err(BenchError::Refused("not all of them wait".into()));
        }
    }
    Ok(clients)
}

/// The longest time until a PING is answered while `work` runs.
fn longest_without_pong<T>(host: &Host, work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let over = AtomicBool::new(false);
    let mut client = host.connect()?;
    thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let ping = Batch::of("PING");
            let mut longest = Duration::ZERO;
            while !over.load(SeqCst) {
                longest = longest.max(client.exchange(&ping)?.1);
            }
            Ok(longest)
        });
        // Some answers before, so that what is slow the first time is not counted.
        thread::sleep(Duration::from_millis(100));
        let done = work();
        over.store(true, SeqCst);
        Ok((join(pings)?, done?))
    })
}

/// Receives one reply for each client.
fn receive_all(clients: &mut [Client], expected: fn(&ServerReply) -> bool) -> Result<()> {
    for client in clients {
        let reply = client.receive()?;
        if !expected(&reply) {
            return Err(BenchError::Refused(format!("{reply:?} to a call that waited")));
        }
    }
    Ok(())
}

/// One release lets everybody in: the longest time without a PONG, and the time until the last has the answer, in ms.
fn granted(size: &HandoverSize) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut control = host.connect()?;
    let number = size.granted;
    control.call(&format!("RL.ACQUIRE pool {number} 0 {number} ID all LEASE 3600000"))?;
    let words = format!("RL.ACQUIRE KEY {number} 0 1 ID # BLOCK 0");
    let mut clients = wait_in_line(&host, "pool", &words, number)?;
    let (longest, took) = longest_without_pong(&host, || {
        let started = Instant::now();
        control.call("RL.RELEASE pool all")?;
        receive_all(&mut clients, allowed)?;
        Ok(started.elapsed())
    })?;
    Ok(vec![longest.as_secs_f64() * 1e3, took.as_secs_f64() * 1e3])
}

/// The time of all is up at once, on a server with many reservations: the longest time without a PONG, and how long after
/// that moment the last has the answer, in ms.
fn dismissed(size: &HandoverSize) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut control = host.connect()?;
    let beside = size.beside;
    reserve(&mut control, "pool", beside, &format!("{beside} 0"), PATIENCE)?;
    let mut clients: Vec<Client> =
        (0..size.dismissed).map(|_| host.connect()).collect::<Result<_>>()?;
    let (longest, took) = longest_without_pong(&host, || {
        let end = Instant::now() + Duration::from_secs(3);
        for client in &mut clients {
            let left_ms = end.saturating_duration_since(Instant::now()).as_millis();
            client.send(&Batch::of(&format!("RL.ACQUIRE pool {beside} 0 BLOCK {left_ms}")))?;
        }
        receive_all(&mut clients, |reply| reply.at(0).integer() == Some(2))?;
        Ok(end.elapsed())
    })?;
    Ok(vec![longest.as_secs_f64() * 1e3, took.as_secs_f64() * 1e3])
}

/// A slot goes from one to the next in a long line: the median and the longest time from a release to the answer of the
/// next, in ms.
fn hand_over(size: &HandoverSize, key: &str) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut control = host.connect()?;
    control.send(&call(key, "RL.ACQUIRE KEY 1 0 1 ID first LEASE 3600000"))?;
    control.receive()?;
    let words = "RL.ACQUIRE KEY 1 0 1 ID # LEASE 3600000 BLOCK 0";
    let mut clients = wait_in_line(&host, key, words, size.in_line)?;
    let mut holder = "first".to_string();
    let mut took = Vec::new();
    for (waiter, client) in clients.iter_mut().enumerate().take(HAND_OVERS) {
        let release = Batch::words(["RL.RELEASE", key, &holder]);
        let started = Instant::now();
        control.send(&release)?;
        let reply = client.receive()?;
        took.push(started.elapsed().as_secs_f64() * 1e3);
        control.receive()?;
        if !allowed(&reply) {
            return Err(BenchError::Refused(format!("{reply:?} to a call that waited")));
        }
        holder = waiter.to_string();
    }
    took.sort_by(f64::total_cmp);
    Ok(vec![took[took.len() / 2], took[took.len() - 1]])
}

/// CPU time in ms of a second in which nothing happens, except that a call waits at each of many semaphores.
fn idle_ms(size: &HandoverSize, held: usize) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut control = host.connect()?;
    reserve(&mut control, "semaphore:0", held, &format!("{held} 0"), PATIENCE)?;
    let mut clients = Vec::new();
    for number in 0..size.semaphores {
        let key = format!("semaphore:{number}");
        if number > 0 {
            control.call(&format!("COPY semaphore:0 {key}"))?;
        }
        let mut client = host.connect()?;
        client.send(&Batch::of(&format!("RL.ACQUIRE {key} {held} 0 BLOCK 0")))?;
        clients.push(client);
    }
    thread::sleep(Duration::from_secs(1));
    let (cpu, started) = (cpu_us(&mut control)?, Instant::now());
    thread::sleep(IDLE);
    let cpu = cpu_us(&mut control)? - cpu;
    Ok(vec![cpu / 1e3 / started.elapsed().as_secs_f64()])
}

/// Measures all of it.
pub fn table(size: &HandoverSize) -> Result<Table> {
    const COLUMNS: [Column; 2] = [
        Column { name: "ms", decimals: 2, compared: false },
        Column { name: "worst or all, ms", decimals: 2, compared: false },
    ];
    let HandoverSize {
        granted: grants,
        dismissed: dismissals,
        beside,
        in_line,
        semaphores,
        held_in_each,
    } = size;
    let title = format!(
        "What waiting costs the others: {grants} granted at once; {dismissals} whose time is up at once beside {beside} \
         reservations; hand-overs in a line of {in_line}; {semaphores} semaphores of {held_in_each} with one waiter each"
    );
    let mut table = Table::new("stall", title, &COLUMNS);
    table.add(GRANTED, None, granted(size))?;
    table.add(DISMISSED, None, dismissed(size))?;
    for key in KEYS {
        table.add(handed_over(key), None, hand_over(size, key))?;
    }
    table.add(idle(false), None, idle_ms(size, 1))?;
    table.add(idle(true), None, idle_ms(size, *held_in_each))?;
    Ok(table)
}
