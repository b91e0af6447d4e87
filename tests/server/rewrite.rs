//! CONFIG REWRITE, by hand and by Sentinel: afterwards a server that was set up as redis.conf.example recommends starts
//! again from its own file.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::*;

const DEADLINE: Duration = Duration::from_secs(90);

fn get(conn: &mut Conn, name: &str) -> String {
    match conn.cmd(["CONFIG", "GET", name]) {
        Value::Array(pair) if pair.len() == 2 => text(&pair[1]),
        other => panic!("{name}: {other:?}"),
    }
}

/// The line that redis.conf.example recommends, for this module's file: without settings, or for servers that have no
/// settings of modules.
fn recommended_line() -> String {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/redis.conf.example");
    let example = fs::read_to_string(example).unwrap();
    let path = "/usr/lib/redis/modules/libredis_ratelimit.so";
    let has_arguments = !Version::under_test().is_from(7, 0);
    let lines = example.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let line = lines.filter(|line| line.starts_with("loadmodule ")).find(|line| {
        line.starts_with(&format!("loadmodule {path}")) && line.ends_with(path) != has_arguments
    });
    line.expect("a loadmodule line in redis.conf.example").replace(path, &module_path())
}

#[test]
fn a_server_with_the_recommended_lines_starts_again_after_each_rewrite() {
    let mut server = Server::builder().module(false).config(recommended_line()).start();
    for round in 7..10 {
        let mut conn = server.conn();
        assert_eq!(conn.ints(format!("RL.WINDOW k{round} 5 60"))[..3], [0, 5, 4]);
        assert_eq!(conn.text(format!("CONFIG SET maxmemory-samples {round}")), "OK");
        if server.version().is_from(7, 0) {
            // Back to the default in the last round, which a line of an included file would undo.
            let entries = if round == 9 { 4_096 } else { round };
            assert_eq!(conn.text(format!("CONFIG SET ratelimit.window-entries {entries}")), "OK");
        }
        assert_eq!(conn.text("CONFIG REWRITE"), "OK");
        let file = fs::read_to_string(server.dir().join("server.conf")).unwrap();
        let loads = file.lines().filter(|line| line.starts_with("loadmodule ")).count();
        assert_eq!(loads, 1, "{file}");
        server.restart(Stop::NoSave);
        let mut conn = server.conn();
        assert_eq!(get(&mut conn, "maxmemory-samples"), round.to_string());
        if server.version().is_from(7, 0) {
            let entries = if round == 9 { 4_096 } else { round };
            assert_eq!(get(&mut conn, "ratelimit.window-entries"), entries.to_string());
        }
    }
}

/// A redis-sentinel process that watches one master. It is killed when dropped.
struct Sentinel {
    port: u16,
    _process: Running,
}

impl Sentinel {
    /// Its files go to the folder of `home`.
    fn start(number: usize, home: &Server, master: &Server) -> Sentinel {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = home.dir();
        let config = dir.join(format!("sentinel-{number}.conf"));
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {dir:?}"),
            format!("sentinel monitor limits 127.0.0.1 {} 2", master.port()),
            // A loaded machine may be silent for a while.
            "sentinel down-after-milliseconds limits 5000".to_owned(),
            "sentinel failover-timeout limits 20000".to_owned(),
        ];
        fs::write(&config, lines.join("\n") + "\n").unwrap();
        let log = File::create(dir.join(format!("sentinel-{number}.log"))).unwrap();
        let binary = server_binary();
        let mut command = Command::new(binary);
        command.arg(&config).arg("--sentinel");
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let sentinel = Sentinel { port, _process: Running::start(&mut command) };
        eventually(DEADLINE, || sentinel.ask("PING").is_some());
        sentinel
    }

    /// None where it does not answer, or answers an error.
    fn ask(&self, line: &str) -> Option<Value> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut conn = client.get_connection().ok()?;
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next()?);
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut conn).ok()
    }

    /// A field of what it knows of its master.
    fn knows(&self, field: &str) -> Option<String> {
        let Value::Array(pairs) = self.ask("SENTINEL MASTER limits")? else { return None };
        let pair = pairs.chunks(2).find(|pair| text(&pair[0]) == field)?;
        Some(text(&pair[1]))
    }

    fn knows_both(&self, others: usize) -> bool {
        self.knows("num-slaves").as_deref() == Some("1")
            && self.knows("num-other-sentinels") == Some(others.to_string())
    }
}

#[test]
fn after_a_failover_by_sentinel_each_server_starts_again_from_its_own_file() {
    let has_settings = Version::under_test().is_from(7, 0);
    let builder = || {
        let mut builder = Server::builder().module(false).config(recommended_line());
        if has_settings {
            builder = builder.config("ratelimit.max-reservations 77");
        }
        builder.aof()
    };
    let mut first = builder().start();
    let second = builder().replica_of(&first).start();
    wait_for_sync(&first, &second);
    let sentinels: Vec<_> = (0..3).map(|number| Sentinel::start(number, &second, &first)).collect();
    eventually(DEADLINE, || sentinels.iter().all(|sentinel| sentinel.knows_both(2)));

    if has_settings {
        // Rewritten only by Sentinel.
        for server in [&first, &second] {
            assert_eq!(server.conn().text("CONFIG SET ratelimit.window-entries 99"), "OK");
        }
    }
    assert_eq!(first.conn().ints("RL.WINDOW k 5 1h 3")[..3], [0, 5, 2]);
    wait_for_sync(&first, &second);
    // Sentinel ends the connections of a server whose role it changes.
    let role = |server: &Server| match server.try_ask("ROLE") {
        Some(Value::Array(parts)) => text(&parts[0]),
        _ => String::new(),
    };
    let is_left_alone = |server: &Server| {
        let clients = server.try_ask("CLIENT LIST");
        clients.is_some_and(|clients| !text(&clients).contains("name=sentinel-"))
    };
    let loads = |server: &Server| {
        let file = fs::read_to_string(server.dir().join("server.conf")).unwrap();
        assert!(file.contains("Generated by CONFIG REWRITE"), "{file}");
        file.lines().filter(|line| line.starts_with("loadmodule ")).count()
    };
    let knows_limits = |server: &Server, settings_stay: bool| {
        let mut conn = server.conn();
        assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h 3")[..3], [1, 5, 2]);
        if has_settings {
            assert_eq!(get(&mut conn, "ratelimit.max-reservations"), "77");
            let entries = if settings_stay { "99" } else { "4096" };
            assert_eq!(get(&mut conn, "ratelimit.window-entries"), entries);
        }
    };

    first.stop(Stop::Kill);
    eventually(DEADLINE, || role(&second) == "master");
    // It comes back as the master that it was, and Sentinel makes it a replica. Nobody had rewritten its file before.
    let mut promoted = second;
    let mut demoted = first;
    demoted.restart(Stop::Kill);
    eventually(DEADLINE, || role(&demoted) == "slave");
    // Each of them may still do so.
    drop(sentinels);
    eventually(DEADLINE, || is_left_alone(&promoted) && is_left_alone(&demoted));
    wait_for_sync(&promoted, &demoted);

    for server in [&promoted, &demoted] {
        eventually(DEADLINE, || loads(server) == 1);
    }
    promoted.restart(Stop::Kill);
    knows_limits(&promoted, true);
    demoted.restart(Stop::Kill);
    wait_for_sync(&promoted, &demoted);
    assert_eq!((role(&promoted), role(&demoted)), ("master".into(), "slave".into()));
    knows_limits(&demoted, false);
}
