//! The programs in examples/ do what they say. Those in Python and Node need what `make test-clients` installs, and are
//! skipped by name without it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use support::*;

use crate::helpers::typescript;

fn held() -> Server {
    Server::builder().with_clock_at(DOCS_US)
}

#[test]
fn examples_of_the_rust_client_limit_axum_tonic_and_reqwest() {
    let Some(mut cargo) = cargo_apart("test", "examples/rust") else { return };
    run_and_print(&mut cargo);
}

/// What the web handler answers: the status, and headers and body in lower case.
fn get(port: u16) -> (u16, String) {
    get_with(port, "")
}

/// The same, with header lines in the request.
fn get_with(port: u16, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(format!("GET / HTTP/1.0\r\n{headers}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer[9..12].parse().unwrap(), answer.to_lowercase())
}

/// The web handler, and the port that it listens on.
fn start_web(server: &Server) -> Option<(Running, u16)> {
    let mut web = Language::Python.script("examples/web.py")?;
    web.env("REDIS_URL", server.url()).env("PORT", "0").stdout(Stdio::piped());
    let mut web = Running::start(web.stderr(Stdio::null()));
    let mut lines = BufReader::new(web.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    // It must not stop because its output is not read.
    thread::spawn(move || lines.for_each(drop));
    Some((web, first.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap()))
}

/// How many calls a flood has.
const FLOOD: usize = 400;

/// Many requests at once: how many were answered with each status.
fn flood(port: u16) -> BTreeMap<u16, usize> {
    let answers: Vec<_> = (0..FLOOD).map(|_| thread::spawn(move || get(port).0)).collect();
    let mut statuses = BTreeMap::new();
    for answer in answers {
        *statuses.entry(answer.join().unwrap()).or_default() += 1;
    }
    statuses
}

/// Whether exactly ten of a flood passed. On a busy machine some may be refused because they waited for too long, with
/// the status of trouble instead of 429.
#[track_caller]
fn assert_ten_pass(statuses: &BTreeMap<u16, usize>, trouble: u16, what: &str) {
    assert_eq!(statuses[&200], 10, "{what}: {statuses:?}");
    let refused: usize = [429, trouble].iter().filter_map(|status| statuses.get(status)).sum();
    assert!(statuses[&429] > 0 && refused == FLOOD - 10, "{what}: {statuses:?}");
}

#[test]
fn web_lets_no_more_than_the_limit_through_in_a_flood() {
    // Where the machine itself stands still for half a second, Redis cannot be reached in time.
    unless_stalled(Duration::from_millis(200), || {
        let server = held();
        let Some((_web, port)) = start_web(&server) else { return };
        assert_ten_pass(&flood(port), 503, "web.py");
    });
}

#[test]
fn web_lets_everybody_through_while_redis_hangs_and_limits_again_when_it_goes_on() {
    let server = held();
    let Some((_web, port)) = start_web(&server) else { return };
    let frozen = server.freeze();
    assert_eq!(flood(port), BTreeMap::from([(200, FLOOD)]));
    drop(frozen);
    eventually(SOON, || get(port).1.contains("x-ratelimit-limit: 10\r\n"));
}

#[test]
fn web_refuses_everybody_when_redis_answers_an_error_or_has_no_room() {
    let server = held();
    let Some((_web, port)) = start_web(&server) else { return };
    let mut conn = server.conn();
    let refuses = |what: &str| {
        let (status, head) = get(port);
        assert!(status == 503 && head.contains("retry-after: 1\r\n"), "{what}: {head}");
    };
    conn.cmd("LPUSH web:{visitors}:127.0.0.1 x");
    refuses("a key of another kind");
    conn.cmd("FLUSHALL");
    assert_eq!(get(port).0, 200);
    conn.cmd("CONFIG SET requirepass changed");
    conn.cmd("CLIENT KILL TYPE normal");
    refuses("a password that was changed");
    conn.cmd(["CONFIG", "SET", "requirepass", ""]);
    conn.cmd("CONFIG SET maxclients 1");
    refuses("a server without a free connection");
}

#[test]
fn web_answers_429_with_retry_after_and_the_ratelimit_headers() {
    let mut server = held();
    let Some((_web, port)) = start_web(&server) else { return };
    for left in (0..10).rev() {
        let (status, head) = get(port);
        let reset = 2 * (10 - left);
        assert_eq!(status, 200);
        for line in [
            "x-ratelimit-limit: 10\r\n".to_owned(),
            format!("x-ratelimit-remaining: {left}\r\n"),
            format!("x-ratelimit-reset: {reset}\r\n"),
        ] {
            assert!(head.contains(&line), "{line:?} in {head}");
        }
        assert!(!head.contains("retry-after"), "{head}");
    }
    let (status, head) = get(port);
    assert!(status == 429 && head.contains("retry-after: 2\r\n"), "{head}");
    assert!(head.contains("x-ratelimit-remaining: 0\r\n"), "{head}");
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
fn web_reports_the_limit_that_decides_and_counts_nothing_that_one_of_them_denies() {
    let server = held();
    let Some((_web, port)) = start_web(&server) else { return };
    let mut conn = server.conn();
    let acme = |headers: &str| get_with(port, &format!("X-Api-Key: acme-1\r\n{headers}"));
    // Other addresses have left the tenant three in this minute.
    conn.cmd("RL.WINDOW web:{acme}:minute 200 1min 197");
    for left in [2, 1, 0] {
        let (status, head) = acme("");
        assert_eq!(status, 200);
        for line in [
            "x-ratelimit-limit: 200\r\n".to_owned(),
            format!("x-ratelimit-remaining: {left}\r\n"),
            "x-ratelimit-reset: 60\r\n".to_owned(),
        ] {
            assert!(head.contains(&line), "{line:?} in {head}");
        }
    }
    let (status, head) = acme("");
    assert!(status == 429 && head.contains("retry-after: 60\r\n"), "{head}");
    assert!(head.contains(r#""violated-policies": ["minute"]"#), "{head}");
    // The address and the day know nothing of the request that the minute denied.
    assert_eq!(conn.ints("RL.THROTTLE_RO web:{acme}:127.0.0.1 9 30 1min")[2], 7);
    assert_eq!(conn.ints("RL.WINDOW_RO web:{acme}:day 5000 1d FIXED")[2], 4_997);
    // Another tenant and the visitors have limits of their own.
    for headers in ["X-Api-Key: zebra-1\r\n", "X-Api-Key: guessed\r\n", ""] {
        let (status, head) = get_with(port, headers);
        assert!(status == 200 && head.contains("x-ratelimit-limit: 10\r\n"), "{head}");
    }
    // A minute later the day is the limit that decides.
    server.clock().advance_ms(60_000);
    conn.cmd("RL.WINDOW web:{acme}:day 5000 1d 4997 FIXED");
    let (status, head) = acme("");
    assert_eq!(status, 429);
    assert!(head.contains("x-ratelimit-limit: 5000\r\n"), "{head}");
    assert!(head.contains(r#""violated-policies": ["day"]"#), "{head}");
    // DOCS_US is 05:19:48 UTC, and a minute has passed.
    let midnight = 86_400 - (5 * 3_600 + 19 * 60 + 48) - 60;
    assert!(head.contains(&format!("retry-after: {midnight}\r\n")), "{head}");
}

/// Writes a program of docs/recipes.md to target/clients, and answers how to start it.
fn recipe(language: Language, fence: &str, name: &str) -> Option<Command> {
    let page = file("docs/recipes.md");
    let (_, program) = page.split_once(&format!("```{fence}\n")).unwrap();
    let (program, rest) = program.split_once("```\n").unwrap();
    assert!(!rest.contains(&format!("```{fence}\n")), "there are two, and which is {name}?");
    let folder = clients_dir().join("recipes");
    fs::create_dir_all(&folder).unwrap();
    // A machine that stands still is no server that is away.
    let patient =
        program.replace("deadline=0.25", "deadline=30").replace("deadline: 250", "deadline: 30000");
    assert_ne!(patient, program, "{name} has another deadline");
    fs::write(folder.join(name), patient).unwrap();
    match language {
        Language::Python => language.script(folder.join(name).to_str().unwrap()),
        Language::Node => {
            // Where npm would put the client.
            let link = clients_dir().join("node_modules/redis-ratelimit-client");
            let _ = fs::remove_file(&link);
            let program = language.script(&format!("recipes/{name}"))?;
            std::os::unix::fs::symlink(crate::helpers::typescript()?, link).unwrap();
            Some(program)
        }
    }
}

#[test]
fn the_recipes_of_fastapi_and_express_let_ten_of_a_flood_through() {
    // A request that had to wait too long is answered as the client library says.
    for (language, fence, name, trouble) in [
        (Language::Python, "python", "fastapi_app.py", 503),
        (Language::Node, "js", "express_app.mjs", 500),
    ] {
        let Some(mut program) = recipe(language, fence, name) else { continue };
        let mut server = held();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        program.env("REDIS_URL", server.url()).env("PORT", port.to_string());
        let _running = Running::start(program.stdout(Stdio::null()).stderr(Stdio::null()));
        eventually(SOON, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert_ten_pass(&flood(port), trouble, name);
        let (_, head) = get(port);
        assert!(head.contains("retry-after: 60\r\n"), "{name}: {head}");
        // An error of Redis allows nothing.
        server.clock().advance_ms(60_000);
        server.conn().cmd("FLUSHALL");
        for kind in ["fastapi", "express"] {
            server.conn().cmd(format!("SET {kind}:127.0.0.1 x"));
        }
        assert_eq!(get(port).0, 500, "{name}");
        // While no server answers, all go through.
        server.stop(Stop::Kill);
        assert_eq!(get(port).0, 200, "{name}");
    }
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
fn login_denies_everybody_while_redis_does_not_reply() {
    let Some(mut login) = Language::Python.script("examples/login.py") else { return };
    let mut server = held();
    login.env("REDIS_URL", server.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut login = Running::start(login.stderr(Stdio::null()));
    let mut stdin = login.0.stdin.take().unwrap();
    let mut lines = BufReader::new(login.0.stdout.take().unwrap()).lines();
    writeln!(stdin, "alice guess").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "wrong: 4 tries left");
    server.stop(Stop::Kill);
    writeln!(stdin, "alice wonderland").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "try again later");
}

#[test]
fn workers_run_two_of_many_jobs_at_a_time() {
    let Some(mut worker) = Language::Python.script("examples/worker.py") else { return };
    let server = Server::start();
    let jobs: Vec<_> = (0..FLOOD).map(|job| job.to_string()).collect();
    let lines = run(worker.args(&jobs).env("REDIS_URL", server.url()).env("JOB_SECONDS", "0.001"));
    let (mut now, mut done) = (0, 0);
    for line in lines.lines() {
        if line.ends_with(" begins") {
            now += 1;
        } else {
            assert!(line.ends_with(" ends"), "{line}");
            (now, done) = (now - 1, done + 1);
        }
        assert!((0..=2).contains(&now), "{lines}");
    }
    assert_eq!((now, done), (0, FLOOD));
}

/// Runs a program to its end, which must be an error that names what is missing; returns what it printed before.
fn fails_without_the_module(program: &mut Command) -> String {
    let output = program.stdin(Stdio::null()).output().unwrap();
    let [printed, error] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(!output.status.success(), "{program:?} printed {printed}");
    assert!(error.to_lowercase().contains("unknown command"), "{program:?}: {error}");
    printed
}

#[test]
fn without_the_module_each_ends_with_an_error_and_allows_nothing() {
    let server = Server::builder().module(false).start();
    let programs: [(_, _, &[&str]); 4] = [
        (Language::Python, "examples/web.py", &[]),
        (Language::Python, "examples/login.py", &[]),
        (Language::Python, "examples/worker.py", &["job"]),
        (Language::Python, "examples/crawler.py", &["http://127.0.0.1:1/"]),
    ];
    let mut ran = vec![];
    for (language, path, args) in programs {
        let Some(mut program) = language.script(path) else { continue };
        program.args(args).env("REDIS_URL", server.url()).env("PORT", "0");
        ran.push(program);
    }
    // Nobody answers there: asking the model would be another error.
    ran.extend(SDKS.iter().filter_map(|sdk| sdk.program(&server, "http://127.0.0.1:1")));
    for mut program in ran {
        assert_eq!(fails_without_the_module(&mut program), "", "{program:?}");
    }
}

#[test]
fn workers_run_two_jobs_at_a_time_and_survive_one_that_dies() {
    let Some(_) = Language::Python.script("examples/worker.py") else { return };
    let (server, mut conn) = Server::connect();
    let worker = |jobs: &[&str], seconds: &str| {
        let mut worker = Language::Python.script("examples/worker.py").unwrap();
        worker.args(jobs).env("REDIS_URL", server.url()).env("JOB_SECONDS", seconds);
        worker
    };
    // One is killed while it holds both places.
    let mut dying = Running::start(worker(&["a", "b"], "1000").stdout(Stdio::null()));
    eventually(SOON, || conn.held_ids("jobs").len() == 2);
    let first = thread::spawn({
        let mut worker = worker(&["c", "d", "e"], "0.3");
        move || run(&mut worker)
    });
    let second = thread::spawn({
        let mut worker = worker(&["f", "g"], "0.3");
        move || run(&mut worker)
    });
    // The leases are renewed: for longer than a lease no other caller gets a place.
    server.wait_until_waiting(5);
    let before = conn.held_ids("jobs");
    thread::sleep(Duration::from_millis(2_500));
    assert_eq!(conn.held_ids("jobs"), before);
    dying.kill();
    let mut most = 0;
    eventually(SOON, || {
        most = most.max(conn.held_ids("jobs").len());
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
    assert_eq!((lines.as_str(), conn.held_ids("jobs").len()), ("", 0));
}

/// What a provider of language models answers to a request.
struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    /// The connection breaks off before the body ends.
    breaks_off: bool,
}

impl Answer {
    fn json(status: u16, body: &str) -> Answer {
        let body = body.to_owned();
        Answer { status, content_type: "application/json", body, breaks_off: false }
    }

    /// Server-sent events. Those of Anthropic have names, which they repeat in their data.
    fn stream(events: &[&str]) -> Answer {
        let event = |data: &&str| match data.strip_prefix(r#"{"type":""#) {
            Some(rest) => format!("event: {}\ndata: {data}\n\n", rest.split('"').next().unwrap()),
            None => format!("data: {data}\n\n"),
        };
        let body = events.iter().map(event).collect();
        Answer { status: 200, content_type: "text/event-stream", body, breaks_off: false }
    }

    fn that_breaks_off(self) -> Answer {
        Answer { breaks_off: true, ..self }
    }
}

/// A provider that gives these answers in turn: its address, and the path and body of each request.
fn provider(answers: Vec<Answer>) -> (String, Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    thread::spawn(move || {
        for Answer { status, content_type, body, breaks_off } in answers {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let (mut head, mut length) = (String::new(), 0);
            while stream.read_line(&mut head).unwrap() > 2 {
                let last = head.lines().last().unwrap().to_lowercase();
                if let Some(value) = last.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut request = vec![0; length];
            stream.read_exact(&mut request).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            sender.send((path, String::from_utf8(request).unwrap())).unwrap();
            let length = body.len() + if breaks_off { 1 } else { 0 };
            let head = format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\nretry-after-ms: 1\r\n\
                 content-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
            );
            stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    (url, requests)
}

/// The examples that ask a model through an SDK.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sdk {
    OpenAi,
    Anthropic,
    Ai,
    /// The same without streaming.
    AiWhole,
}

const SDKS: [Sdk; 4] = [Sdk::OpenAi, Sdk::Anthropic, Sdk::Ai, Sdk::AiWhole];

impl Sdk {
    /// The hash tag of its keys.
    fn tag(self) -> &'static str {
        match self {
            Sdk::OpenAi => "{openai}",
            Sdk::Anthropic => "{anthropic}",
            Sdk::Ai | Sdk::AiWhole => "{ai-sdk}",
        }
    }

    /// The program, which asks this server and this provider.
    fn program(self, server: &Server, provider: &str) -> Option<Command> {
        self.program_with(server, provider, "Why is the sky blue?")
    }

    /// The program, which asks with this prompt.
    fn program_with(self, server: &Server, provider: &str, prompt: &str) -> Option<Command> {
        let mut program = match self {
            Sdk::OpenAi => Language::Python.script("examples/openai_chat.py")?,
            Sdk::Anthropic => Language::Python.script("examples/anthropic_chat.py")?,
            Sdk::Ai | Sdk::AiWhole => ai_sdk()?,
        };
        let v1 = format!("{provider}/v1");
        program.env("REDIS_URL", server.url()).env("MODEL", "test").arg(prompt);
        program.env("OPENAI_API_KEY", "x").env("OPENAI_BASE_URL", &v1).env("LLM_URL", v1);
        program.env("ANTHROPIC_API_KEY", "x").env("ANTHROPIC_BASE_URL", provider);
        program.env("STREAM", if self == Sdk::AiWhole { "no" } else { "yes" });
        Some(program)
    }

    /// The model calls the tool. It takes 280 tokens in and 20 out.
    fn calls_tool(self) -> Answer {
        match self {
            Sdk::OpenAi | Sdk::Ai => Answer::stream(&[
                r#"{"id":"1","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"clock","arguments":""}}]},"finish_reason":null}]}"#,
                r#"{"id":"1","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":null}]}"#,
                r#"{"id":"1","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
                r#"{"id":"1","object":"chat.completion.chunk","created":1,"model":"test","choices":[],"usage":{"prompt_tokens":280,"completion_tokens":20,"total_tokens":300}}"#,
                "[DONE]",
            ]),
            Sdk::AiWhole => Answer::json(
                200,
                r#"{"id":"1","object":"chat.completion","created":1,"model":"test","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"clock","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":280,"completion_tokens":20,"total_tokens":300}}"#,
            ),
            Sdk::Anthropic => Answer::stream(&[
                r#"{"type":"message_start","message":{"id":"1","type":"message","role":"assistant","model":"test","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":280,"output_tokens":1}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"call_1","name":"clock","input":{}}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":20}}"#,
                r#"{"type":"message_stop"}"#,
            ]),
        }
    }

    /// The model says "blue". It takes 400 tokens in and 20 out.
    fn says_blue(self) -> Answer {
        match self {
            Sdk::OpenAi | Sdk::Ai => Answer::stream(&[
                r#"{"id":"2","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{"role":"assistant","content":"bl"},"finish_reason":null}]}"#,
                r#"{"id":"2","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{"content":"ue"},"finish_reason":null}]}"#,
                r#"{"id":"2","object":"chat.completion.chunk","created":1,"model":"test","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                r#"{"id":"2","object":"chat.completion.chunk","created":1,"model":"test","choices":[],"usage":{"prompt_tokens":400,"completion_tokens":20,"total_tokens":420}}"#,
                "[DONE]",
            ]),
            Sdk::AiWhole => Answer::json(
                200,
                r#"{"id":"2","object":"chat.completion","created":1,"model":"test","choices":[{"index":0,"message":{"role":"assistant","content":"blue"},"finish_reason":"stop"}],"usage":{"prompt_tokens":400,"completion_tokens":20,"total_tokens":420}}"#,
            ),
            Sdk::Anthropic => Answer::stream(&[
                r#"{"type":"message_start","message":{"id":"2","type":"message","role":"assistant","model":"test","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":400,"output_tokens":1}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"bl"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ue"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":20}}"#,
                r#"{"type":"message_stop"}"#,
            ]),
        }
    }

    /// The begin of that answer.
    fn says_blue_and_breaks_off(self) -> Answer {
        let mut answer = self.says_blue();
        let end = answer.body.find("ue\"").unwrap();
        answer.body.truncate(answer.body[end..].find("\n\n").unwrap() + end + 2);
        answer.that_breaks_off()
    }

    fn error(self, status: u16) -> Answer {
        let body =
            r#"{"type":"error","error":{"type":"api_error","message":"no"},"request_id":"1"}"#;
        Answer::json(status, body)
    }
}

/// What was counted: requests, tokens, and millionths of dollars. Nothing may be reserved any more.
fn counted(conn: &mut Conn, sdk: Sdk) -> (i64, i64, i64) {
    let tag = sdk.tag();
    let mut used = |key: &str| {
        let key = format!("{tag}:{key}");
        assert!(conn.held(&key).is_empty(), "{key}");
        1_000_000 - conn.ints(format!("RL.WINDOW_RO {key} 1000000 1min"))[2]
    };
    used("calls");
    let (requests, tokens) = (used("requests"), used("tokens"));
    let dollars = conn.ints(format!("RL.WINDOW_RO {tag}:dollars 5000000 1d FIXED"))[2];
    (requests, tokens, 5_000_000 - dollars)
}

/// examples/ai_sdk.mts after the compiler, as `node` runs TypeScript by itself only from version 24 on.
fn ai_sdk() -> Option<Command> {
    static COMPILED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let compiler = typescript()?.join("node_modules/.bin/tsc");
        let types = typescript()?.join("node_modules/@types");
        // By the link, so that the compiler finds packages in target/clients/node_modules.
        let link = clients_dir().join("examples/ai_sdk.mts");
        let compiled = clients_dir().join("compiled");
        let mut command = Command::new(compiler);
        command.args(["--ignoreConfig", "--target", "es2022", "--module", "nodenext", "--strict"]);
        command.args(["--skipLibCheck", "--preserveSymlinks", "--types", "node", "--typeRoots"]);
        run(command.arg(types).arg("--outDir").arg(&compiled).arg(link));
        Some(compiled.join("ai_sdk.mjs"))
    };
    let program = COMPILED.get_or_init(compile).as_ref()?;
    let mut command = Command::new("node");
    command.arg(program);
    Some(command)
}

#[test]
fn sdk_callers_reserve_once_for_each_request_and_settle_its_usage() {
    for sdk in SDKS {
        let server = Server::start();
        // The SDK retries the first.
        let answers = vec![sdk.error(503), sdk.calls_tool(), sdk.says_blue()];
        let (url, requests) = provider(answers);
        let Some(mut program) = sdk.program(&server, &url) else { continue };
        assert_eq!(run(&mut program).trim_end(), "blue", "{sdk:?}");
        let requests: Vec<_> = requests.try_iter().collect();
        let path = if sdk == Sdk::Anthropic { "/v1/messages" } else { "/v1/chat/completions" };
        assert!(requests.len() == 3 && requests.iter().all(|(at, _)| at == path), "{requests:?}");
        assert_eq!(requests[0].1, requests[1].1, "{sdk:?}");
        assert!(requests[2].1.contains("call_1"), "the result of the tool: {requests:?}");
        // The requests are counted that were answered.
        let dollars = if sdk == Sdk::Anthropic { 3 * 680 + 15 * 40 } else { 0 };
        assert_eq!(counted(&mut server.conn(), sdk), (2, 720, dollars), "{sdk:?}");
        // The AI SDK's own retries are outside of what it lets a middleware do.
        let reserved = if matches!(sdk, Sdk::Ai | Sdk::AiWhole) { 3 } else { 2 };
        assert_eq!(server.info_ratelimit("all_allowed"), reserved, "{sdk:?}");
    }
}

#[test]
fn sdk_callers_count_nothing_for_a_request_that_fails() {
    for sdk in SDKS {
        let server = Server::start();
        let (url, requests) = provider(vec![sdk.error(400)]);
        let Some(mut program) = sdk.program(&server, &url) else { continue };
        let output = program.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{sdk:?}: {output:?}");
        assert_eq!(requests.try_iter().count(), 1, "{sdk:?}");
        assert_eq!(counted(&mut server.conn(), sdk), (0, 0, 0), "{sdk:?}");
        assert_eq!(server.info_ratelimit("all_allowed"), 1, "{sdk:?}");
    }
}

#[test]
fn sdk_callers_count_what_was_streamed_before_a_stream_broke_off() {
    for sdk in [Sdk::OpenAi, Sdk::Anthropic, Sdk::Ai] {
        let server = Server::start();
        let (url, _requests) = provider(vec![sdk.says_blue_and_breaks_off()]);
        let Some(mut program) = sdk.program(&server, &url) else { continue };
        let output = program.output().unwrap();
        assert!(!output.status.success(), "{sdk:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "blue", "{sdk:?}");
        let (requests, tokens, dollars) = counted(&mut server.conn(), sdk);
        assert!(requests == 1 && (50..1_000).contains(&tokens), "{sdk:?}: {tokens}");
        assert_eq!(dollars > 0, sdk == Sdk::Anthropic, "{dollars}");
    }
}

#[test]
fn sdk_callers_ask_no_model_while_the_limits_are_used_up() {
    for sdk in SDKS {
        let server = held();
        let mut conn = server.conn();
        conn.cmd(format!("RL.ACQUIRE {}:calls 4 0 4 LEASE 1000 ID others", sdk.tag()));
        let (url, requests) = provider(vec![sdk.says_blue()]);
        let Some(mut program) = sdk.program(&server, &url) else { continue };
        let denied = || server.info_ratelimit("all_denied") > 0;
        if matches!(sdk, Sdk::Ai | Sdk::AiWhole) {
            // It tries again when it has waited for as long as the denial said.
            let begin = Instant::now();
            let running = thread::spawn(move || run(&mut program));
            eventually(SOON, denied);
            server.clock().advance_ms(1_000);
            assert_eq!(running.join().unwrap().trim_end(), "blue", "{sdk:?}");
            assert!((Duration::from_secs(1)..SOON).contains(&begin.elapsed()), "{sdk:?}");
            assert_eq!(requests.try_iter().count(), 1, "{sdk:?}");
            assert_eq!(counted(&mut conn, sdk), (1, 420, 0), "{sdk:?}");
        } else {
            let output = program.output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            let says = "the limits are used up, try again after 0:00:";
            assert!(!output.status.success() && error.starts_with(says), "{sdk:?}: {error}");
            assert!(requests.try_recv().is_err(), "{sdk:?}");
            conn.cmd(format!("RL.RELEASE {}:calls others", sdk.tag()));
            assert_eq!(counted(&mut conn, sdk), (0, 0, 0), "{sdk:?}");
        }
        assert!(denied(), "{sdk:?}");
    }
}

#[test]
fn sdk_callers_do_not_wait_for_a_prompt_that_is_too_long() {
    let prompt = "blue ".repeat(5_000);
    for sdk in [Sdk::OpenAi, Sdk::Anthropic, Sdk::Ai] {
        let server = Server::start();
        let (url, requests) = provider(Vec::new());
        let Some(mut program) = sdk.program_with(&server, &url, &prompt) else { continue };
        let output = program.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let says = "the prompt is too long for the limit";
        assert!(!output.status.success() && error.contains(says), "{sdk:?}: {error}");
        assert!(requests.try_recv().is_err(), "{sdk:?}");
        assert_eq!(server.info_ratelimit("all_denied"), 1, "{sdk:?}");
    }
}

/// A host that answers every request with five bytes, and its address.
fn host() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let answer = b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    address
}

#[test]
fn crawlers_take_turns_at_each_host_and_sleep_for_the_returned_time() {
    let Some(_) = Language::Python.script("examples/crawler.py") else { return };
    // The server's clock stands still, so each turn gets its distance from the first.
    let server = held();
    let (one, other) = (host(), host());
    let crawl = |urls: Vec<String>| {
        let mut crawler = Language::Python.script("examples/crawler.py").unwrap();
        crawler.args(urls).env("REDIS_URL", server.url()).env("PAUSE", "300ms");
        thread::spawn(move || run(&mut crawler))
    };
    let url = |host: &str, page: usize| format!("http://{host}/{page}");
    let begin = Instant::now();
    let crawlers = [
        crawl((0..4).map(|page| url(&one, page)).collect()),
        crawl((4..6).map(|page| url(&one, page)).chain([url(&other, 0), url(&other, 1)]).collect()),
    ];
    let output: String = crawlers.into_iter().map(|crawler| crawler.join().unwrap()).collect();
    let took = begin.elapsed();
    let sleeps = |host: &str| {
        let mut sleeps: Vec<u64> = output
            .lines()
            .filter(|line| line.starts_with(&format!("http://{host}/")))
            .map(|line| {
                let (_, slept) = line.split_once(": 5 bytes after ").unwrap();
                slept.strip_suffix(" ms").unwrap().parse().unwrap()
            })
            .collect();
        sleeps.sort_unstable();
        sleeps
    };
    assert_eq!(sleeps(&one), [0, 300, 600, 900, 1_200, 1_500], "{output}");
    assert_eq!(sleeps(&other), [0, 300], "{output}");
    assert!((Duration::from_millis(1_500)..SOON).contains(&took), "{took:?}");
}

#[test]
fn crawlers_ask_again_when_the_turns_of_a_minute_are_taken() {
    let Some(mut crawler) = Language::Python.script("examples/crawler.py") else { return };
    let server = held();
    let host = host();
    // The next turn is 60.5 seconds away.
    let book = format!("RL.THROTTLE crawl:{host} 0 2 1s 1 AHEAD 2min");
    (0..121).for_each(|_| assert_eq!(server.conn().ints(&book)[0], 0));
    crawler.arg(format!("http://{host}/")).env("REDIS_URL", server.url()).env("PAUSE", "500ms");
    let mut crawler = Running::start(crawler.stdout(Stdio::null()));
    // The reply says to ask again half a second later, and it does, but the server's clock stands still.
    eventually(SOON, || server.info_ratelimit("throttle_denied") >= 2);
    assert_eq!(server.info_ratelimit("throttle_allowed"), 121);
    server.clock().advance_ms(500);
    eventually(SOON, || server.info_ratelimit("throttle_allowed") == 122);
    // The turn is a minute away, so nothing has been fetched yet.
    assert!(crawler.0.try_wait().unwrap().is_none());
}
