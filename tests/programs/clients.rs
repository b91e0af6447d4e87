//! Every command by the clients that people use: one by one, pipelined, in a transaction, from a script, waiting; over
//! RESP2 and RESP3. The cases are in tests/clients/cases.json, the same for all. `make test-clients` runs all of it;
//! without what it installs, the rest is skipped by name.

#[path = "../clients/cases.rs"]
mod cases;
use std::process::Command;

use cases::{calls, calls_from_scripts, check};
use serde_json::{json, Value as Json};
use support::redis::{cmd, pipe, Client, Cmd, Connection, RedisError};
use support::*;

/// A server whose clock stands still, for the cases, and one that lives by real time, for what waits.
fn servers() -> [Server; 2] {
    [Server::builder().with_clock_at(DOCS_US), Server::start()]
}

/// Gives the servers' ports to a program that checks its client by itself.
fn pass(command: &mut Command) {
    let servers = servers();
    command.args(servers.iter().map(|server| server.port().to_string()));
    run_and_print(command);
}

#[test]
fn redis_py_and_its_asyncio_run_every_command_and_wait() {
    Language::Python.script("tests/clients/redis_py.py").iter_mut().for_each(pass);
}

#[test]
fn node_redis_and_ioredis_run_every_command_and_wait() {
    Language::Node.script("tests/clients/node.mjs").iter_mut().for_each(pass);
}

#[test]
fn cluster_clients_of_node_and_python_find_the_node_of_each_key() {
    let scripts = [
        Language::Node.script("tests/clients/cluster.mjs"),
        Language::Python.script("tests/clients/cluster.py"),
    ];
    if scripts.iter().all(Option::is_none) {
        return;
    }
    let cluster = Cluster::of(3, 0);
    for mut script in scripts.into_iter().flatten() {
        run_and_print(script.arg(cluster.node(0).port().to_string()));
    }
}

#[test]
fn fred_and_redis_rs_with_tokio_run_every_command_and_wait() {
    cargo_apart("run", "tests/clients/rust").iter_mut().for_each(|cargo| pass(cargo.arg("--")));
}

/// A crate that was written for redis-cell.
#[test]
fn a_client_of_redis_cell_understands_cl_throttle() {
    let Some(mut cargo) = cargo_apart("run", "tests/clients/redis_cell") else { return };
    let (server, _conn) = Server::builder().module_args(["cl-throttle", "yes"]).with_held_clock();
    run_and_print(cargo.args(["--", &server.port().to_string()]));
}

/// A reply as the cases have it.
fn as_json(reply: Result<Value, RedisError>) -> Json {
    match reply {
        Ok(Value::Nil) => Json::Null,
        Ok(Value::Int(number)) => json!(number),
        Ok(Value::Array(values)) => values.into_iter().map(|value| as_json(Ok(value))).collect(),
        Ok(Value::ServerError(error)) => json!({"error": error_line(&Value::ServerError(error))}),
        Ok(other) => json!(text(&other)),
        Err(error) => match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => json!({"error": format!("{code} {detail}")}),
            _ => json!({"error": error.to_string()}),
        },
    }
}

fn command(words: &[String]) -> Cmd {
    let mut command = cmd(&words[0]);
    command.arg(&words[1..]);
    command
}

/// redis-rs, which this repository's tests depend on anyway, without an executor.
#[test]
fn redis_rs_runs_every_command() {
    let server = Server::builder().with_clock_at(DOCS_US);
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}?protocol={protocol}", server.url());
        let mut conn = Client::open(url).unwrap().get_connection().unwrap();
        let one_by_one = |conn: &mut Connection, calls: Vec<Vec<String>>| -> Vec<Json> {
            calls.iter().map(|words| as_json(command(words).query(conn))).collect()
        };
        let at_once = |conn: &mut Connection, atomic: bool| -> Vec<Json> {
            let mut pipe = pipe();
            calls().iter().for_each(|words| {
                pipe.add_command(command(words));
            });
            if atomic {
                pipe.atomic();
            }
            let replies: Vec<Value> = pipe.ignore_errors().query(conn).unwrap();
            replies.into_iter().map(|reply| as_json(Ok(reply))).collect()
        };
        for mode in ["plain", "pipelined", "in a transaction", "from a script"] {
            cmd("FLUSHALL").exec(&mut conn).unwrap();
            let replies = match mode {
                "plain" => one_by_one(&mut conn, calls()),
                "pipelined" => at_once(&mut conn, false),
                "in a transaction" => at_once(&mut conn, true),
                _ => one_by_one(&mut conn, calls_from_scripts()),
            };
            check(&format!("{protocol} {mode}"), &replies);
        }
    }
}
