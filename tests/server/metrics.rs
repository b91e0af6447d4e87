//! The script of examples/metrics/ turns INFO ratelimit and RL.TOP into names and numbers, on every server.

use std::collections::BTreeMap;

use support::*;

fn script() -> String {
    file("examples/metrics/ratelimit.lua")
}

/// The reply of the script, read as redis_exporter does: bulk strings, names and numbers in turn.
fn metrics(conn: &mut Conn) -> BTreeMap<String, String> {
    let reply = conn.cmd(["EVAL".to_owned(), script(), "0".to_owned()]);
    let Value::Array(values) = &reply else { panic!("{reply:?}") };
    assert_eq!(values.len() % 2, 0);
    let mut metrics = BTreeMap::new();
    for pair in values.chunks(2) {
        assert!(pair.iter().all(|value| matches!(value, Value::BulkString(_))), "{pair:?}");
        let (name, number) = (text(&pair[0]), text(&pair[1]));
        assert!(number.parse::<f64>().is_ok(), "{name}: {number}");
        assert_eq!(metrics.insert(name.clone(), number), None, "{name} comes twice");
    }
    metrics
}

fn with_policies() -> Server {
    let policies = "policies free THROTTLE 0 1 60; a_denied WINDOW 1 60 SHADOW";
    Server::builder().module_args(policies.split(' ')).start()
}

#[test]
fn the_script_exports_every_number_of_info() {
    let server = with_policies();
    let mut conn = server.conn();
    for _ in 0..3 {
        conn.cmd("RL.THROTTLE user:1 @free");
        conn.cmd("RL.WINDOW user:1:w @a_denied");
    }
    conn.refuses("RL.WINDOW w x 60", "ERR limit must be an integer from 0 ");
    let metrics = metrics(&mut conn);
    let get = |name: &str| metrics.get(name).map(String::as_str);
    assert_eq!(get("ratelimit_loaded"), Some("1"));
    assert_eq!(get("ratelimit_calls_total:throttle:allowed"), Some("1"));
    assert_eq!(get("ratelimit_calls_total:throttle:denied"), Some("2"));
    assert_eq!(get("ratelimit_calls_total:window:errors"), Some("1"));
    assert_eq!(get("ratelimit_calls_total:cl_throttle:allowed"), Some("0"));
    assert_eq!(get("ratelimit_policy_calls_total:free:denied"), Some("2"));
    assert_eq!(get("ratelimit_policy_calls_total:a_denied:allowed"), Some("1"));
    assert_eq!(get("ratelimit_policy_calls_total:a_denied:shadow_denied"), Some("2"));
    assert_eq!(get("ratelimit_top_readable"), Some("1"));
    assert_eq!(get("ratelimit_top_denied:0:user:1"), Some("2"));

    // Each field is there: version, commit and digests are labels of one metric, a policy has three numbers.
    let info = text(&conn.cmd("INFO ratelimit"));
    let mut fields = 0;
    for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
        fields += 1;
        let name = field.strip_prefix("ratelimit_").unwrap();
        let found = match (name, name.rsplit_once('_')) {
            ("version" | "commit" | "policies_digest" | "settings_digest", _) => metrics
                .keys()
                .any(|key| key.starts_with("ratelimit_module:") && key.contains(value)),
            // The digest of the settings depends on it.
            ("tzdata", _) => true,
            (_, Some(_)) if value.starts_with("allowed=") => {
                let policy = name.strip_prefix("policy_").unwrap();
                let results = ["allowed", "denied", "shadow_denied"];
                results.iter().all(|result| {
                    metrics.contains_key(&format!("ratelimit_policy_calls_total:{policy}:{result}"))
                })
            }
            (_, Some((command, result @ ("allowed" | "denied" | "errors")))) => {
                metrics.contains_key(&format!("ratelimit_calls_total:{command}:{result}"))
            }
            _ => metrics.contains_key(field),
        };
        assert!(found, "{field} is not exported: {metrics:?}");
    }
    assert!(fields > 40, "{info}");
}

#[test]
fn keys_of_any_bytes_become_labels_in_ascii_and_stay_different() {
    let server = with_policies();
    let mut conn = server.conn();
    let keys: [&[u8]; 4] = [b"a\xff\n:\"", b"a\\xff\\x0a:\"", b"caf\xc3\xa9", b"caf\\xc3\\xa9"];
    for key in keys {
        for _ in 0..2 {
            conn.cmd([b"RL.THROTTLE", key, b"@free"]);
        }
    }
    let metrics = metrics(&mut conn);
    let tops: Vec<&String> =
        metrics.keys().filter(|key| key.starts_with("ratelimit_top_denied:")).collect();
    assert_eq!(
        tops,
        [
            "ratelimit_top_denied:0:a\\x5cxff\\x5cx0a:\"",
            "ratelimit_top_denied:0:a\\xff\\x0a:\"",
            "ratelimit_top_denied:0:caf\\x5cxc3\\x5cxa9",
            "ratelimit_top_denied:0:caf\\xc3\\xa9",
        ]
    );
}

#[test]
fn a_server_without_the_module_is_recognized() {
    let server = Server::builder().module(false).start();
    let metrics = metrics(&mut server.conn());
    assert_eq!(metrics.get("ratelimit_loaded").map(String::as_str), Some("0"));
    // The clock is moved there too.
    assert_eq!(metrics.len(), 2, "{metrics:?}");
}

#[test]
fn the_script_needs_rl_top_only_for_the_denied_keys() {
    let server = with_policies();
    let mut conn = server.conn();
    conn.cmd("RL.THROTTLE user:1 @free");
    conn.cmd("RL.THROTTLE user:1 @free");
    for (command, readable) in [("+rl.top", "1"), ("", "0")] {
        let mut conn = server.as_user(&format!("-@all +eval +info +time {command}"));
        let metrics = metrics(&mut conn);
        assert_eq!(metrics["ratelimit_top_readable"], readable);
        assert_eq!(metrics["ratelimit_calls_total:throttle:denied"], "1");
        assert_eq!(metrics.contains_key("ratelimit_top_denied:0:user:1"), readable == "1");
    }
}
