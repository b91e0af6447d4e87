//! The programs in examples/ do what they say. Those in Python and Node need what `make test-clients` installs, and are
//! skipped by name without it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use support::*;

const NOW_US: i64 = 1_795_238_388_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn held() -> Server {
    let server = Server::builder().clock(true).start();
    server.clock().set_us(NOW_US);
    server
}

#[test]
fn each_is_short_and_begins_with_how_to_run_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_file() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() < 80, "{name}");
        let head: String = text.lines().take(9).collect();
        let run = name.strip_suffix(".rs").map(|example| format!("cargo run --example {example}"));
        assert!(head.contains(&run.unwrap_or(format!("examples/{name}"))), "{name}");
        names.push(name);
    }
    names.sort();
    let all = ["llm_caller.mjs", "login.py", "shaper.rs", "web.py", "worker.py"];
    assert_eq!(names, all, "each has a test here");
}

/// What the web handler answers: the status, and the headers in lower case.
fn get(port: u16) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer[9..12].parse().unwrap(), answer.to_lowercase())
}

#[test]
fn web_answers_429_with_retry_after_and_the_ratelimit_headers() {
    let Some(mut web) = Language::Python.script("examples/web.py") else { return };
    let mut server = held();
    web.env("REDIS_URL", server.url()).env("PORT", "0").stdout(Stdio::piped());
    let mut web = Running::start(web.stderr(Stdio::null()));
    let mut lines = BufReader::new(web.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let port = first.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    for left in (0..10).rev() {
        let (status, head) = get(port);
        let reset = 2 * (10 - left);
        assert_eq!(status, 200);
        for line in [
            "ratelimit-limit: 10\r\n".to_owned(),
            format!("ratelimit-remaining: {left}\r\n"),
            format!("ratelimit-reset: {reset}\r\n"),
        ] {
            assert!(head.contains(&line), "{line:?} in {head}");
        }
        assert!(!head.contains("retry-after"), "{head}");
    }
    let (status, head) = get(port);
    assert!(status == 429 && head.contains("retry-after: 2\r\n"), "{head}");
    assert!(head.contains("ratelimit-remaining: 0\r\n"), "{head}");
    server.clock().advance_ms(1_999);
    assert_eq!(get(port).0, 429);
    server.clock().advance_ms(1);
    assert_eq!(get(port).0, 200);
    // Without Redis everybody is let through.
    server.stop(Stop::Kill);
    let (status, head) = get(port);
    assert!(status == 200 && !head.contains("ratelimit"), "{head}");
}

#[test]
fn login_counts_denied_tries_so_that_hammering_keeps_the_door_shut() {
    let Some(mut login) = Language::Python.script("examples/login.py") else { return };
    let server = held();
    login.env("REDIS_URL", server.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut login = Running::start(&mut login);
    let mut stdin = login.0.stdin.take().unwrap();
    let mut lines = BufReader::new(login.0.stdout.take().unwrap()).lines();
    let mut try_it = |password: &str| {
        writeln!(stdin, "alice {password}").unwrap();
        lines.next().unwrap().unwrap()
    };
    for left in (0..5).rev() {
        assert_eq!(try_it("guess"), format!("wrong: {left} tries left"));
    }
    assert_eq!(try_it("wonderland"), "locked: try again in 900 s");
    // One try a minute keeps it shut, long after the five tries that shut it have left the window.
    for minute in 1..=30 {
        server.clock().advance_ms(60_000);
        let answer = try_it("wonderland");
        assert!(answer.starts_with("locked: "), "{answer} after {minute} minutes");
    }
    server.clock().advance_ms(15 * 60_000);
    assert_eq!(try_it("guess"), "wrong: 4 tries left");
    assert_eq!(try_it("wonderland"), "welcome, alice");
    assert_eq!(try_it("guess"), "wrong: 4 tries left");
}

#[test]
fn workers_run_two_jobs_at_a_time_and_survive_one_that_dies() {
    let Some(_) = Language::Python.script("examples/worker.py") else { return };
    let server = Server::start();
    let mut conn = server.conn();
    let worker = |jobs: &[&str], seconds: &str| {
        let mut worker = Language::Python.script("examples/worker.py").unwrap();
        worker.args(jobs).env("REDIS_URL", server.url()).env("JOB_SECONDS", seconds);
        worker
    };
    // One is killed while it holds both places.
    let mut dying = Running::start(worker(&["a", "b"], "1000").stdout(Stdio::null()));
    eventually(PATIENCE, || held_count(&mut conn) == 2);
    let first = thread::spawn({
        let mut worker = worker(&["c", "d", "e"], "0.3");
        move || run(&mut worker)
    });
    let second = thread::spawn({
        let mut worker = worker(&["f", "g"], "0.3");
        move || run(&mut worker)
    });
    // The leases are renewed: for longer than a lease nobody else gets a place.
    eventually(PATIENCE, || server.info("ratelimit_waiting").as_deref() == Some("5"));
    let Value::Array(before) = conn.cmd("RL.HELD jobs") else { panic!() };
    thread::sleep(Duration::from_millis(2_500));
    let Value::Array(after) = conn.cmd("RL.HELD jobs") else { panic!() };
    let id = |held: &Value| match held {
        Value::Array(held) => text(&held[0]),
        other => panic!("{other:?}"),
    };
    assert_eq!(before.iter().map(id).collect::<Vec<_>>(), after.iter().map(id).collect::<Vec<_>>());
    dying.kill();
    let mut most = 0;
    eventually(PATIENCE, || {
        most = most.max(held_count(&mut conn));
        first.is_finished() && second.is_finished()
    });
    assert_eq!(most, 2);
    let mut lines = format!("{}{}", first.join().unwrap(), second.join().unwrap());
    for job in ["c", "d", "e", "f", "g"] {
        for what in ["begins", "ends"] {
            let line = format!("{job} {what}\n");
            assert!(lines.contains(&line), "{line}");
            lines = lines.replacen(&line, "", 1);
        }
    }
    assert_eq!((lines.as_str(), held_count(&mut conn)), ("", 0));
}

fn held_count(conn: &mut Conn) -> usize {
    match conn.cmd("RL.HELD jobs") {
        Value::Array(held) => held.len(),
        other => panic!("{other:?}"),
    }
}

/// A model that answers these statuses in turn, having used 300 tokens each time.
fn model(statuses: &'static [u16]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for status in statuses {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap() > 2 {
                let header = line.to_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let body = r#"{"choices": [{"message": {"content": "blue"}}], "usage": {"total_tokens": 300}}"#;
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}");
            stream.get_mut().write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn llm_caller_counts_what_was_used_and_nothing_for_a_call_that_fails() {
    let Some(mut caller) = Language::Node.script("examples/llm_caller.mjs") else { return };
    let server = Server::start();
    let mut conn = server.conn();
    caller.env("REDIS_URL", server.url()).env("LLM_MODEL", "test");
    let remaining = |conn: &mut Conn| conn.ints("RL.WINDOW_RO llm:tokens 10000 1min")[2];

    // Two that succeed.
    let prompts = ["Why is the sky blue?", "And the sea?"];
    let output_of_two =
        "blue\n(300 tokens of 1010 reserved)\nblue\n(300 tokens of 1006 reserved)\n";
    assert_eq!(run(caller.env("LLM_URL", model(&[200, 200])).args(prompts)), output_of_two);
    assert_eq!(remaining(&mut conn), 10_000 - 600);
    // One that fails.
    let output = caller.env("LLM_URL", model(&[503])).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error == "the model answered 503\n", "{error}");
    assert_eq!(remaining(&mut conn), 10_000 - 600);
    // One that waits until somebody else settles for less.
    conn.cmd("RL.ACQUIRE llm:tokens 10000 1min 9000 ID other");
    let waiting = thread::spawn(move || run(caller.env("LLM_URL", model(&[200, 200]))));
    eventually(PATIENCE, || server.info("ratelimit_waiting").as_deref() == Some("1"));
    assert_eq!(conn.int("RL.APPLY llm:tokens other 10"), 1);
    assert_eq!(waiting.join().unwrap(), output_of_two);
    assert_eq!(remaining(&mut conn), 10_000 - 1_210);
}

#[test]
fn shaper_lets_mails_out_evenly() {
    let server = Server::start();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["run", "--quiet", "--locked", "--example", "shaper", "--"]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).env("REDIS_URL", server.url());
    let output = run(cargo.args(["anna", "bert", "carl", "dora", "emil"]));
    // "0.000 s: to anna"
    let (times, names): (Vec<f64>, Vec<&str>) = output
        .lines()
        .map(|line| {
            let (time, name) = line.split_once(" s: to ").unwrap();
            (time.trim().parse::<f64>().unwrap(), name)
        })
        .unzip();
    assert_eq!(names, ["anna", "bert", "carl", "dora", "emil"]);
    for (turn, time) in (0..).zip(&times) {
        let due = 0.1 * f64::from(turn);
        assert!(*time > due - 0.001, "{output}");
    }
}
