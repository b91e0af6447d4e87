//! The users in docs/commands.md have the rights that popular clients need, and no more. The scripts in tests/clients also
//! make each client do what it does by itself, such as health checks and finding the nodes of a cluster. A server may refuse
//! nothing but what the scripts try on purpose.

use support::*;

/// The calls that the scripts try on purpose, by their names in ACL LOG.
const REFUSED: [&str; 3] = ["other", "del", "get"];

/// The first line of the block of the page that is marked so.
fn marked(mark: &str) -> String {
    let page = file("docs/commands.md");
    let (_, after) = page.split_once(&format!("<!-- {mark} -->\n```text\n")).unwrap();
    after.lines().next().unwrap().to_owned()
}

/// The user of a block marked `<!-- user: NAME -->`, as this server takes it.
fn user(name: &str, version: Version) -> String {
    let line = marked(&format!("user: {name}"));
    assert!(line.starts_with("ACL SETUSER app "), "{line}");
    // As the page says.
    let line = if version.has_own_categories() {
        line
    } else {
        line.replace("+@ratelimit", &marked("names"))
    };
    let has_setinfo = version.is_from(7, 2) || !version.is_from(7, 0);
    if has_setinfo {
        line
    } else {
        line.replace(" +client|setinfo", "")
    }
}

/// Runs the scripts of both languages and fails if a server refused anything else than they tried.
fn run_scripts(how: &str, port: u16, servers: &[&Server]) {
    let scripts =
        [(Language::Python, "tests/clients/acl.py"), (Language::Node, "tests/clients/acl.mjs")];
    for (language, path) in scripts {
        let Some(mut script) = language.script(path) else { continue };
        print!("{}", run(script.args([how, &port.to_string()])));
        for server in servers {
            let mut conn = server.conn();
            let entries = conn.array("ACL LOG");
            for entry in &entries {
                let fields = flat(entry);
                let object = fields.iter().position(|field| field == "object").unwrap();
                let object = &fields[object + 1];
                // Before 7.0 the log does not say which CLIENT command it was. Clients try some that only newer servers
                // know.
                let is_newer = object == "client" && !server.version().is_from(7, 0);
                let is_meant = REFUSED.contains(&object.as_str()) || is_newer;
                assert!(is_meant, "{path} was refused {object}: {fields:?}");
            }
            conn.cmd("ACL LOG RESET");
        }
    }
}

fn make_user(name: &str, server: &Server) {
    let line = user(name, server.version());
    assert_eq!(server.conn().text(&line), "OK", "{line}");
}

#[test]
fn the_names_for_servers_without_the_category_are_all_but_those_for_administrators() {
    let server = Server::start();
    let commands = server.conn().array("COMMAND");
    let names = commands.iter().map(|command| flat(command).swap_remove(0));
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with("rl.") && name != "rl.top" && name != "rl.policies")
        .map(|name| format!("+{name}"))
        .collect();
    names.sort();
    let line = marked("names");
    let mut listed: Vec<_> = line.split(' ').collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
}

/// A connection of the user `app`.
fn app(server: &Server) -> Conn {
    let mut app = server.conn();
    app.cmd("AUTH app secret");
    app
}

#[test]
fn the_user_may_reset_a_limit_only_with_the_line_for_it() {
    let server = Server::start();
    make_user("one server", &server);
    let mut app = app(&server);
    app.cmd("RL.WINDOW limit:1 1 1h");
    assert_eq!(app.text("MULTI"), "OK");
    assert_eq!(app.text("RL.RELEASE limit:1 a"), "QUEUED");
    assert_eq!(app.array("EXEC"), [Value::Int(0)]);
    app.refuses("SELECT 1", "NOPERM ");
    server.conn().cmd("ACL SETUSER app +select");
    assert_eq!(app.text("SELECT 1"), "OK");
    assert_eq!(app.text("SELECT 0"), "OK");
    app.refuses("DEL limit:1", "NOPERM ");
    server.conn().cmd(marked("may reset"));
    assert_eq!(app.int("DEL limit:1"), 1);
    app.refuses("DEL other", "NOPERM ");
}

#[test]
fn only_who_has_the_line_for_it_may_set_limits_in_hashes() {
    let server = Server::start();
    make_user("one server", &server);
    server.conn().cmd(marked("may set limits"));
    let (mut app, mut tenants) = (app(&server), server.conn());
    tenants.cmd("AUTH tenants secret");
    let set = ["HSET", "limit:{acme}:limits", "rpm", "WINDOW 7 1min"];
    assert!(app.err(set).starts_with("NOPERM "));
    assert_eq!(tenants.int(set), 1);
    tenants.refuses("HSET limit:{acme}:other rpm x", "NOPERM ");
    let call = "RL.ALL 2 limit:{acme}:rpm limit:{acme}:limits WINDOW @rpm LIMITS";
    assert_eq!(all_reply(&app.cmd(call)).numbers[1], 7);
    tenants.refuses(call, "NOPERM ");
    // What the user of the limits may do leaves the hash as it is.
    for call in ["RL.WINDOW limit:{acme}:limits 5 60", "RL.RELEASE limit:{acme}:limits a"] {
        app.refuses(call, "WRONGTYPE ");
    }
    assert_eq!(tenants.int("HDEL limit:{acme}:limits rpm"), 1);
}

#[test]
fn the_acl_line_for_servers_without_categories_denies_the_commands_for_administrators() {
    let server = Server::start();
    server.conn().cmd("ACL SETUSER app on >secret ~* +@all -@dangerous");
    let mut app = app(&server);
    let is_closed = server.version().is_from(7, 2) || server.version().is_valkey;
    for command in ["RL.TOP", "RL.POLICIES"] {
        assert_eq!(matches!(app.cmd(command), Value::ServerError(_)), is_closed, "{command}");
    }
    server.conn().cmd(marked("closed by name"));
    for command in ["RL.TOP", "RL.POLICIES"] {
        app.refuses(command, "NOPERM ");
    }
}

#[test]
fn the_user_for_one_server_is_enough_for_redis_py_node_redis_and_ioredis() {
    let server = Server::start();
    make_user("one server", &server);
    run_scripts("one", server.port(), &[&server]);
}

#[test]
fn the_user_for_a_cluster_is_enough_for_their_cluster_clients() {
    let cluster = Cluster::start();
    let nodes: Vec<_> = (0..6).map(|index| cluster.node(index)).collect();
    nodes.iter().for_each(|node| make_user("cluster", node));
    run_scripts("cluster", cluster.node(0).port(), &nodes);
}

#[test]
fn the_users_for_sentinel_are_enough_for_them() {
    let (master, replica) = Server::with_replica();
    let servers = [&master, &replica];
    servers.iter().for_each(|server| make_user("one server", server));

    let sentinel = Sentinel::start(&master, &master, 1, &[]);
    sentinel.wait_until_knows(1, 0);
    let line = user("on Sentinels", master.version());
    assert_eq!(sentinel.ask(&line), Some(Value::Okay), "{line}");
    let outcome = std::panic::catch_unwind(|| run_scripts("sentinel", sentinel.port(), &servers));
    let Some(Value::Array(entries)) = sentinel.ask("ACL LOG") else {
        panic!("no ACL LOG of Sentinel")
    };
    let mut refused: Vec<_> = entries.iter().map(flat).collect();
    refused.retain(|fields| {
        master.version().is_from(7, 0) || !fields.iter().any(|field| field == "client")
    });
    assert!(refused.is_empty(), "Sentinel refused: {refused:?}");
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
