//! CONFIG REWRITE, by hand and by Sentinel: afterwards a server that was set up as redis.conf.example recommends starts
//! again from its own file.

use std::fs;

use support::*;

/// The line that redis.conf.example recommends, for this module's file: without settings, or for servers that have no
/// settings of modules.
fn recommended_line() -> String {
    let example = file("redis.conf.example");
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
        assert_eq!(conn.setting("maxmemory-samples"), round.to_string());
        if server.version().is_from(7, 0) {
            let entries = if round == 9 { 4_096 } else { round };
            assert_eq!(conn.setting("ratelimit.window-entries"), entries.to_string());
        }
    }
}

/// With `--loadmodule` in a command, CONFIG REWRITE would write a second line into its file.
#[test]
fn containers_load_the_module_by_a_file_that_survives_a_rewrite() {
    let (page, image) = (file("docs/install.md"), file("packaging/Dockerfile"));
    let lines = page.lines().chain(image.lines().rfind(|line| line.starts_with("CMD ")));
    let array = |line: &str| {
        let (name, words) = line.trim().split_once(" [")?;
        let words = ["[", words].concat();
        let is_command = ["command:", "args:", "CMD"].contains(&name);
        is_command.then(|| serde_json::from_str::<Vec<String>>(&words).expect("an array of words"))
    };
    let commands: Vec<_> = lines.filter_map(array).collect();
    assert_eq!(commands.len(), 3, "Compose, Kubernetes and the image: {commands:?}");
    for command in &commands {
        assert!(command[0].ends_with(".conf"), "{command:?}");
        assert!(!command.contains(&"--loadmodule".into()), "{command:?}");
    }
    let (_, config) = page.split_once("  redis.conf: |\n").expect("the ConfigMap");
    let (config, _) = config.split_once("\n```").unwrap();
    for (config, path) in [
        (config, "/modules/libredis_ratelimit.so"),
        (&file("packaging/redis.conf"), "/usr/lib/redis/modules/libredis_ratelimit.so"),
    ] {
        assert!(config.contains(path), "{config}");
        let config = config.replace(path, &module_path());
        let mut builder = Server::builder().module(false);
        for line in config.lines() {
            builder = builder.config(line.trim());
        }
        let mut server = builder.start();
        assert_eq!(server.conn().text("CONFIG REWRITE"), "OK");
        server.restart(Stop::NoSave);
        assert_eq!(server.conn().ints("RL.WINDOW k 5 60")[..3], [0, 5, 4]);
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
    // A loaded machine may be silent for a while.
    let config =
        ["sentinel down-after-milliseconds limits 5000", "sentinel failover-timeout limits 20000"];
    let sentinels = [(); 3].map(|()| Sentinel::start(&second, &first, 2, &config));
    sentinels.iter().for_each(|sentinel| sentinel.wait_until_knows(1, 2));

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
            assert_eq!(conn.setting("ratelimit.max-reservations"), "77");
            let entries = if settings_stay { "99" } else { "4096" };
            assert_eq!(conn.setting("ratelimit.window-entries"), entries);
        }
    };

    first.stop(Stop::Kill);
    eventually(SOON, || role(&second) == "master");
    // It comes back as the master that it was, and Sentinel makes it a replica. Nobody had rewritten its file before.
    let mut promoted = second;
    let mut demoted = first;
    demoted.restart(Stop::Kill);
    eventually(SOON, || role(&demoted) == "slave");
    // Each of them may still do so.
    drop(sentinels);
    eventually(SOON, || is_left_alone(&promoted) && is_left_alone(&demoted));
    wait_for_sync(&promoted, &demoted);

    for server in [&promoted, &demoted] {
        eventually(SOON, || loads(server) == 1);
    }
    promoted.restart(Stop::Kill);
    knows_limits(&promoted, true);
    demoted.restart(Stop::Kill);
    wait_for_sync(&promoted, &demoted);
    assert_eq!((role(&promoted), role(&demoted)), ("master".into(), "slave".into()));
    knows_limits(&demoted, false);
}
