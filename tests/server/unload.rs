//! MODULE UNLOAD: what is lost, what stays, and what the log says about it.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use support::*;

/// The most bytes that one cycle may leave. A list that the module forgets to free is larger.
const LEFT_BYTES: i64 = 16;

#[test]
fn a_module_that_is_unloaded_takes_its_memory_along() {
    const CYCLES: i64 = 40;
    // A busy server would remember each load as slow.
    let (server, mut conn) = Server::builder().config("slowlog-log-slower-than -1").connect();
    let module = module_path();
    let mut cycle = || {
        conn.cmd("RL.THROTTLE a 1 1 60");
        conn.cmd("RL.ACQUIRE s 1 0");
        conn.cmd("RL.ACQUIRE s 1 0 BLOCK 5");
        // From eight reservations on a key has an index.
        conn.pipeline(["RL.ACQUIRE index 9 0"; 9]);
        conn.cmd(["HSET", "limits", "rpm", "WINDOW 9 1min"]);
        conn.cmd("RL.ALL 2 own limits WINDOW @rpm LIMITS");
        for zone in ["Asia/Shanghai", "Europe/Lisbon", "America/New_York", "+08:00"] {
            conn.cmd(format!("RL.WINDOW w 1 1d FIXED TZ {zone}"));
        }
        conn.cmd("FLUSHALL");
        eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
        conn.cmd(format!("MODULE LOAD {module}"));
    };
    // The first ones fill buffers of the server.
    (0..5).for_each(|_| cycle());
    let used = || server.info_number("used_memory");
    // Buffers of clients grow and shrink when the server likes, so the one in the middle counts.
    let mut left: Vec<_> = (0..5)
        .map(|_| {
            let before = used();
            (0..CYCLES).for_each(|_| cycle());
            (used() - before) / CYCLES
        })
        .collect();
    left.sort();
    assert!(left[2] < LEFT_BYTES, "{left:?} bytes are left each time");
}

/// The server keeps the category when the module goes, and refuses to add it a second time.
#[test]
fn the_category_has_the_commands_after_each_load() {
    let (server, mut conn) = Server::connect();
    if !server.version().has_own_categories() {
        return server.version().skip("modules cannot add categories");
    }
    for (user, rules) in [("inside", "-@all +@ratelimit"), ("outside", "+@all -@ratelimit")] {
        assert_eq!(conn.text(format!("ACL SETUSER {user} on nopass ~* {rules}")), "OK");
    }
    let login = |user| {
        let mut conn = server.conn();
        assert_eq!(conn.text(format!("AUTH {user} x")), "OK");
        conn
    };
    for times in 1..=3 {
        assert_eq!(login("inside").ints("RL.WINDOW k 5 60")[2], 5 - times);
        login("inside").refuses("RL.TOP", "NOPERM ");
        login("outside").refuses("RL.WINDOW k 5 60", "NOPERM ");
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
        assert_eq!(conn.text(format!("MODULE LOAD {}", module_path())), "OK");
    }
}

/// From Redis 7.2 on and on Valkey, a server that worked out the rules of its users without the module would crash.
#[test]
fn rules_that_name_a_command_keep_the_module_loaded() {
    let (server, mut conn) = Server::connect();
    let unload = "MODULE UNLOAD ratelimit";
    let load = format!("MODULE LOAD {}", module_path());
    if !server.version().is_from(7, 2) {
        let mut app = server.as_user("~* +rl.throttle");
        assert_eq!(conn.pipeline([unload, &load]), [Value::Okay, Value::Okay]);
        app.cmd("RL.THROTTLE k 5 5 5");
        return;
    }
    let by_name = [
        "+rl.throttle", "+RL.Throttle|x", "+@all -rl.top", "+@ratelimit -rl.throttle",
        "off +rl.all", "+@ratelimit +rl.throttle",
    ];
    let selectors = ["(+rl.throttle ~x)", "(~x +@all -rl.throttle)"];
    let rules = by_name.iter().map(|rules| rules.split(' ').collect::<Vec<_>>());
    for rules in rules.chain(selectors.map(|selector| vec![selector])) {
        assert_eq!(conn.text([&["ACL", "SETUSER", "app"], &rules[..]].concat()), "OK");
        let error = conn.err(unload);
        assert!(error.starts_with("ERR Error unloading module: "), "{rules:?}: {error}");
        // Some releases of Valkey refuse before they ask the module.
        if !error.contains("one or more ACL users reference commands from this module") {
            let log = server.log();
            let (_, line) = log.rsplit_once("MODULE UNLOAD is refused").expect("a line in the log");
            let line = line.lines().next().unwrap().strip_suffix(": app").expect("the user's name");
            assert!(file("docs/operations.md").contains(line), "{line}");
        }
        assert_eq!(conn.int("ACL DELUSER app"), 1);
    }
    // Nothing was taken apart.
    assert_eq!(conn.ints("RL.WINDOW k 5 60")[2], 4);
    // Names of users and patterns of keys are no rules.
    let others = "on ~+rl.throttle +rl.throttle -@all +@ratelimit +get -@dangerous";
    assert_eq!(conn.text(format!("ACL SETUSER +rl.throttle {others}")), "OK");
    assert_eq!(conn.pipeline([unload, &load]), [Value::Okay, Value::Okay]);
}

/// Each of these servers has crashed, or has run another command than was sent.
#[test]
fn no_connection_keeps_a_command_of_a_module_that_is_gone() {
    let (server, mut conn) = Server::connect();
    let load = format!("MODULE LOAD {}", module_path());
    let reload = ["MODULE UNLOAD ratelimit", &load];
    let transaction = ["MULTI", reload[0], reload[1], "EXEC"];
    let commands = ["RL.WINDOW k 5 60", "RL.TOP", "RL.ALL 1 k WINDOW 5 60"];
    for reload in [&reload[..], &transaction[..]] {
        let mut clients: Vec<_> = (0..8).map(|_| server.conn()).collect();
        for (client, command) in clients.iter_mut().zip(commands.into_iter().cycle()) {
            client.cmd(command);
        }
        let [_, _, went_on, open, discarded, behind, refused, idle] = &mut clients[..] else {
            panic!()
        };
        went_on.cmd("PING");
        open.pipeline(["MULTI", "RL.WINDOW k 5 60", "PING"]);
        discarded.pipeline(["MULTI", "RL.WINDOW k 5 60", "DISCARD"]);
        // In one piece: some servers look up the second command before the first has ended.
        let piece = "*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$2\r\n60\r\n\
            *4\r\n$9\r\nRL.WINDOW\r\n$1\r\nk\r\n$1\r\n5\r\n$2\r\n60\r\n";
        behind.socket().write_all(piece.as_bytes()).unwrap();
        refused.refuses("RL.WINDOW k", "ERR wrong number of arguments");
        idle.cmd("PING");
        eventually(SOON, || server.info_number("blocked_clients") == 1);

        let replies = conn.pipeline(reload);
        assert!(!format!("{replies:?}").contains("Error"), "{replies:?}");
        // What was freed is used again.
        conn.pipeline(
            (0..200).map(|length| format!("SET filler{length} {}", "x".repeat(length + 1))),
        );
        let list = conn.text("CLIENT LIST");
        assert!(!list.contains("cmd=rl."), "{list}");
        for (number, client) in clients.iter_mut().enumerate() {
            let is_open = client.try_cmd("PING").is_ok();
            assert_eq!(is_open, [2, 4, 7].contains(&number), "{number}");
        }
        assert_eq!(conn.ints("RL.WINDOW_RO k 5 60")[1], 5);
        conn.cmd("FLUSHALL");
    }
}

/// Has redis-cli read the command that the log named last to load the module again. Returns the command and the reply.
fn load_as_logged(server: &Server) -> (String, String) {
    let log = server.log();
    let ours = log.lines().filter_map(|line| Some(line.split_once("redis-ratelimit: ")?.1));
    let mut command = String::new();
    for line in ours {
        let (number, piece) = match line.strip_prefix("(part ") {
            Some(part) => {
                let (numbers, piece) = part.split_once(", join with spaces) ").unwrap();
                (numbers.split_once(" of ").unwrap().0.parse().unwrap(), piece)
            }
            None => (1, line),
        };
        if piece.starts_with("MODULE LOAD") {
            command = piece.into();
        } else if number > 1 {
            command += " ";
            command += piece;
        }
    }
    let file = server.dir().join("load");
    fs::write(&file, &command).unwrap();
    let mut cli = Command::new(cli());
    cli.args(["-p", &server.port().to_string()]).stdin(File::open(file).unwrap());
    (command, run(&mut cli).trim_end().to_owned())
}

fn settings(conn: &mut Conn) -> Vec<String> {
    flat(&conn.cmd("CONFIG GET ratelimit.*"))
}

#[test]
fn settings_are_not_lost_by_a_plain_unload_and_load() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let long =
        (0..200).map(|number| format!("p{number} WINDOW {number} 1d FIXED TZ Asia/Shanghai"));
    let long = long.collect::<Vec<_>>().join("; ");
    for (name, value) in [
        ("lease", "5"),
        ("top-keys", "0"),
        ("timezone", "Asia/Shanghai"),
        ("notify-denied", "yes"),
        ("policies-only", "yes"),
        ("policies", "free THROTTLE 15 30 60;\n day WINDOW 5 1d FIXED;"),
        ("policies", &long),
    ] {
        // Among the lines of redis.conf, some are load arguments: they are lost as the rest is.
        let (server, mut conn) = Server::builder()
            .module_args(["max-waiters", "7", "cl-throttle", "yes"])
            .config("ratelimit.max-reservations 77")
            .connect();
        assert_eq!(conn.text(["CONFIG", "SET", &format!("ratelimit.{name}"), value]), "OK");
        let before = settings(&mut conn);
        conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
        assert!(server.log().contains("MODULE UNLOAD is refused, as it would lose 4 settings"));
        assert_eq!(settings(&mut conn), before);
        conn.refuses(format!("MODULE LOAD {}", module_path()), LOAD_FAILED);
        assert_eq!(conn.int("RL.RELEASE k x"), 0);

        assert_eq!(conn.text("CONFIG SET ratelimit.allow-unload yes"), "OK");
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
        let (load, reply) = load_as_logged(&server);
        assert!(load.starts_with("MODULE LOADEX "), "{load}");
        assert_eq!(reply, "OK", "{load}");
        assert_eq!(settings(&mut conn), before, "{name} {value}");
        // The permission was for one time.
        conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
    }
}

#[test]
fn a_module_with_default_settings_is_unloaded_without_permission() {
    let (server, mut conn) = Server::connect();
    let load = format!("MODULE LOAD {}", module_path());
    if server.version().is_from(7, 0) {
        conn.cmd(
            "CONFIG SET ratelimit.lease 5 ratelimit.policies-only yes ratelimit.timezone +01:00",
        );
        conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
        conn.cmd(
            "CONFIG SET ratelimit.lease 20000 ratelimit.policies-only no ratelimit.timezone UTC",
        );
    }
    assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    assert_eq!(conn.text(load.as_str()), "OK");
    if server.version().is_from(7, 0) {
        // It is no setting that would be missed.
        assert_eq!(conn.text("CONFIG SET ratelimit.allow-unload yes"), "OK");
    }
    assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    assert!(!server.log().contains("MODULE UNLOAD loses"));
}

#[test]
fn load_arguments_are_not_lost_by_a_plain_unload_and_load() {
    let arguments = ["lease", "60000", "policies", "a WINDOW 5 60; b THROTTLE 1 1 1"];
    let (_server, mut conn) = Server::builder().module_args(arguments).connect();
    conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
    assert_eq!(conn.ints("RL.WINDOW k @a 0")[1], 5);

    let permitted = [&["allow-unload", "yes"], &arguments[..]].concat();
    let (server, mut conn) = Server::builder().module_args(permitted).connect();
    for _ in 0..2 {
        if server.version().is_from(7, 0) {
            conn.cmd("CONFIG SET ratelimit.allow-unload yes");
        }
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
        assert!(server.log().contains("MODULE UNLOAD loses 2 settings"));
        assert_eq!(load_as_logged(&server).1, "OK");
        assert_eq!(conn.ints("RL.WINDOW k @a 0")[1], 5);
        conn.pipeline(["DEL s", "RL.ACQUIRE s 1 0 ID x"]);
        // Without the argument it would be 20 s.
        assert!((30_000..=60_000).contains(&conn.held("s")[0].ms_left));
    }
}

#[test]
fn a_module_that_the_server_rejects_is_unloaded_even_if_its_settings_differ() {
    if Version::under_test().lacks("MODULE LOADEX", (7, 0)) {
        return;
    }
    let (_server, mut conn) = Server::builder().module(false).connect();
    let path = module_path();
    for round in 0..3 {
        let wrong = "CONFIG ratelimit.lease 5 CONFIG ratelimit.leese 7";
        conn.refuses(format!("MODULE LOADEX {path} {wrong}"), "ERR Error loading the extension");
        assert!(!format!("{:?}", conn.cmd("MODULE LIST")).contains("ratelimit"), "{round}");
        // Nothing of it is left.
        assert_eq!(conn.text(format!("MODULE LOAD {path}")), "OK");
        assert_eq!(conn.setting("ratelimit.lease"), "20000");
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    }
}

/// Found by `make valgrind`: each refused MODULE LOAD kept a context of the server's, with 17 kB of buffers.
#[test]
fn a_module_that_is_refused_leaves_no_memory_behind() {
    const CYCLES: i64 = 100;
    const LEFT_BYTES: i64 = 4_000;
    let (server, mut conn) = Server::builder().module(false).connect();
    let module = module_path();
    let mut refuse = |times| {
        for _ in 0..times {
            conn.refuses(format!("MODULE LOAD {module} lease 0"), LOAD_FAILED);
        }
        server.info_number("used_memory")
    };
    let before = refuse(10);
    let left = (refuse(CYCLES) - before) / CYCLES;
    assert!(left < LEFT_BYTES, "{left} bytes are left each time");
}
