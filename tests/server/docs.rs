//! Checks that README.md, docs/ and redis.conf.example are right: runs each example and compares the replies, causes each
//! error, and looks up each syntax, INFO field, setting and link.

#[path = "../../benches/pictures/drawn/mod.rs"]
mod drawn;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use support::*;

/// The real time to wait for a reply before the held clock is moved on.
const TURN: Duration = Duration::from_millis(20);
const PROMPT: &str = "127.0.0.1:6379> ";

/// README.md, CONTRIBUTING.md, SECURITY.md and all pages in docs/.
fn pages() -> Vec<String> {
    let names = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<_> =
        names.filter(|it| it.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    pages.sort();
    pages
}

/// The pages whose examples a reader may paste one after the other. On all others each example starts from an empty
/// database.
const PASTED: [&str; 2] = ["README.md", "docs/recipes.md"];

/// The text between two fences.
struct Block {
    /// File and line, for messages.
    place: String,
    language: String,
    lines: Vec<String>,
}

/// A command of a block, and the reply under it.
struct ShownStep {
    command: Vec<String>,
    printed: String,
}

impl Block {
    fn waits(&self) -> bool {
        self.lines.iter().any(|line| line.starts_with(PROMPT) && line.contains(" BLOCK "))
    }
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let (place, language) = (format!("{page}:{number}"), language.to_owned());
                open = Some(Block { place, language, lines: Vec::new() });
            }
            (Some(rest), Some(_)) => {
                assert_eq!(rest, "", "{page}:{number}: a block begins inside another");
                blocks.extend(open.take());
            }
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => assert!(!line.trim_start().starts_with("```"), "{page}:{number}"),
        }
    }
    assert!(open.is_none(), "{page}: a block has no end");
    blocks
}

fn steps(block: &Block) -> Result<Vec<ShownStep>, String> {
    let step = |lines: &[String]| match lines {
        [command, printed] if !printed.starts_with(PROMPT) => {
            let command = command.strip_prefix(PROMPT).ok_or("no command comes first")?;
            Ok(ShownStep { command: split(command)?, printed: printed.clone() })
        }
        lines => Err(format!("each command has one line of reply: {lines:?}")),
    };
    block.lines.chunks(2).map(step).collect()
}

/// The arguments of a line as redis-cli takes it: split on blanks, but not within quotes.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (character, quote) {
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (_, Some(open)) if character == open => quote = None,
            ('\\', _) => return Err(format!("escapes are not understood: {line}")),
            (' ', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.map_or(Ok(words), |_| Err(format!("a quote is left open: {line}")))
}

/// A reply as `redis-cli --json` prints it.
fn print(reply: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(print).collect::<Vec<_>>().join(",");
    match reply {
        Value::Nil => "null".into(),
        Value::Okay => "\"OK\"".into(),
        Value::Int(number) => number.to_string(),
        Value::Double(number) => number.to_string(),
        Value::SimpleString(text) => format!("{text:?}"),
        Value::BulkString(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::ServerError(_) => format!("error:\"{}\"", error_line(reply)),
        Value::Array(values) => format!("[{}]", list(values)),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| print(name) + ":" + &print(value));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
        }
        other => panic!("{other:?} is in no example"),
    }
}

/// Is true if it may be an id that the server made.
fn is_made_id(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.len() == 16 && text.bytes().all(known)
}

/// The way in which a reader tries an example.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    /// By typing, with the ids that the server made.
    Types,
    /// By pasting it as it is.
    Pastes,
}

/// Runs a block on a connection; how many commands it has.
fn run(block: &Block, reader: Reader, server: &Server, conn: &mut Conn) -> Result<usize, String> {
    // The ids that are printed, and those that the server made instead.
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    let steps = steps(block)?;
    for ShownStep { command, printed } in &steps {
        let made = |word: &String| (reader == Reader::Types).then(|| ids.get(word)).flatten();
        let word = |word: &String| made(word).unwrap_or(word).clone();
        conn.send(command.iter().map(word).collect::<Vec<_>>());
        // A call that waits lives by timers, and those by the wall clock. Less than a second passes here, so times in
        // seconds stay what they are, rounded up.
        let mut turns = 0;
        while conn.silent_for(TURN) {
            turns += 1;
            if turns == 1_500 {
                return Err(format!("{}: no reply", command.join(" ")));
            }
            if block.waits() {
                server.clock().advance_us(TURN.as_micros() as i64);
            }
        }
        let mut reply = conn.recv();
        // A module cannot reply with a map before Redis 7.0.
        if let (true, false, Value::Array(list)) =
            (printed.starts_with('{'), server.version().is_from(7, 0), &reply)
        {
            let pairs = list.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            reply = Value::Map(pairs.collect());
        }
        let has = |name: &str| command.iter().any(|word| word.eq_ignore_ascii_case(name));
        let mut shown = print(&reply);
        if let (true, false, Value::Array(elements)) = (has("RL.ACQUIRE"), has("ID"), &reply) {
            if let Some(Value::BulkString(id)) = elements.last() {
                let id = String::from_utf8_lossy(id).into_owned();
                let known = printed.strip_suffix("\"]").and_then(|rest| rest.rsplit('"').next());
                if let Some(known) = known.filter(|known| is_made_id(known) && is_made_id(&id)) {
                    if ids.insert(known.to_owned(), id).is_some() {
                        return Err(format!("the id {known} is printed twice"));
                    }
                }
            }
        }
        for (known, made) in &ids {
            shown = shown.replace(made, known);
        }
        if shown != *printed {
            let command = command.join(" ");
            return Err(format!(
                "{command}\n--- is said to answer\n{printed}\n--- but does\n{shown}"
            ));
        }
    }
    Ok(steps.len())
}

/// A server whose clock is held, with the settings that the page says its examples use, or those of docs/commands.md.
fn server(page: &str) -> Server {
    let blocks = |page: &str| blocks(page, &file(page));
    let has_policies = |it: &Block| it.lines.iter().any(|it| it.starts_with("ratelimit.policies"));
    let mut all = blocks(page).into_iter().chain(blocks("docs/commands.md"));
    let block = all.find(|it| it.language == "conf" && has_policies(it));
    // `policies` takes all arguments that follow it.
    let mut settings: Vec<_> = block
        .unwrap()
        .lines
        .iter()
        .flat_map(|it| it.split_once(' '))
        .map(|(name, value)| [name.replace("ratelimit.", ""), value.trim_matches('"').to_owned()])
        .collect();
    settings.sort_by_key(|[name, _]| name == "policies");
    Server::builder().module_args(settings.concat()).with_clock_at(DOCS_US)
}

/// Resets the server for the next example.
fn reset(server: &Server, conn: &mut Conn) {
    server.clock().set_us(DOCS_US);
    conn.cmd("FLUSHALL");
}

/// Runs the commands of a block without prompts. The reply to the last one is that of the block after it, if that shows one
/// as `redis-cli` does; what a line says behind two blanks explains it.
fn run_pasted(block: &Block, next: Option<&Block>, conn: &mut Conn) -> Result<usize, String> {
    let mut reply = Value::Nil;
    for line in &block.lines {
        reply = conn.cmd(split(line)?);
        if let Value::ServerError(_) = reply {
            return Err(format!("{line}: {}", print(&reply)));
        }
    }
    let printed = next.filter(|next| next.lines.first().is_some_and(|it| it.starts_with("1) ")));
    let Some(printed) = printed else { return Ok(block.lines.len()) };
    let replies = printed.lines.iter().map(|it| it.split("  ").next().unwrap_or_default());
    let shown = (1..).zip(ints(&reply)).map(|(number, it)| format!("{number}) (integer) {it}"));
    match replies.eq(shown) {
        true => Ok(block.lines.len()),
        false => Err(format!("{:?} answers {}", block.lines, print(&reply))),
    }
}

#[test]
fn every_example_gets_the_reply_that_is_printed_under_it() {
    let (mut run_blocks, mut commands, mut failures) = (0, 0, Vec::new());
    let mut names = BTreeSet::new();
    for page in &pages() {
        let reader = if PASTED.contains(&page.as_str()) { Reader::Pastes } else { Reader::Types };
        let mut server = server(page);
        let mut conn = server.conn_resp3();
        let blocks = blocks(page, &file(page));
        for (at, block) in blocks.iter().enumerate() {
            match block.language.as_str() {
                "redis" => {
                    let sets = block.lines.iter().any(|line| line.starts_with("CONFIG SET"));
                    if sets && !server.version().is_from(7, 0) {
                        continue;
                    }
                    match run_pasted(block, blocks.get(at + 1), &mut conn) {
                        Ok(count) => commands += count,
                        Err(why) => failures.push(format!("{}: {why}", block.place)),
                    }
                    run_blocks += 1;
                }
                "console" => {
                    // They count calls, which depend on other examples.
                    let lasts = |line: &String| {
                        ["RL.TOP", "RL.POLICIES"].iter().any(|it| line.contains(it))
                    };
                    if block.lines.iter().any(lasts) {
                        server = self::server(page);
                        conn = server.conn_resp3();
                    }
                    if reader == Reader::Types {
                        reset(&server, &mut conn);
                    }
                    match run(block, reader, &server, &mut conn) {
                        Ok(count) => commands += count,
                        Err(why) => failures.push(format!("{}: {why}", block.place)),
                    }
                    run_blocks += 1;
                    names.extend(
                        steps(block).into_iter().flatten().map(|step| step.command[0].clone()),
                    );
                }
                // An example that is not run must not look like one that is.
                "" => panic!("{}: in which language?", block.place),
                _ => {
                    let looks = block.lines.iter().any(|line| line.contains(PROMPT.trim_end()));
                    assert!(!looks, "{}: an example that is not run", block.place);
                }
            }
        }
        // Times in seconds are what they are on paper only if no second passes on a page.
        assert!(server.clock().now_us() - DOCS_US < 1_000_000, "{page} waits for too long");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(run_blocks >= 30 && commands >= 80, "{run_blocks} blocks of {commands} commands");
    for name in command_names() {
        assert!(names.contains(&name), "{name} has no example");
    }
}

/// The syntax of each command, which docs/commands.md shows under the heading with its name.
fn syntaxes() -> BTreeMap<String, String> {
    let page = file("docs/commands.md");
    let sections = page.split("\n## ").filter_map(|section| {
        let (name, rest) = section.split_once("\n\n```text\n")?;
        let syntax = rest.split("\n```").next()?.split_ascii_whitespace();
        Some((name.to_owned(), syntax.collect::<Vec<_>>().join(" ")))
    });
    sections.filter(|(name, _)| !name.contains('\n')).collect()
}

fn command_names() -> impl Iterator<Item = String> {
    syntaxes().into_keys()
}

/// An argument as COMMAND DOCS describes it, in the words of docs/commands.md.
fn syntax(argument: &Value) -> String {
    let fields = map(argument);
    let field = |name: &str| fields.get(name).map(text).unwrap_or_default();
    let parts = |between: &str| {
        let Some(Value::Array(parts)) = fields.get("arguments") else { panic!("{argument:?}") };
        parts.iter().map(syntax).collect::<Vec<_>>().join(between)
    };
    let (name, token) = (field("name"), field("token"));
    let value = match name.as_str() {
        _ if field("type") == "integer" && !token.is_empty() => "n".into(),
        "policy" => "@policy".into(),
        name if name.ends_with("-ms") => "ms".into(),
        name => name.replace('-', "_"),
    };
    let is_flagged = |flag: &str| match fields.get("flags") {
        Some(Value::Array(flags)) => flags.iter().any(|it| text(it) == flag),
        _ => false,
    };
    let mut shown = match field("type").as_str() {
        "pure-token" => token,
        "oneof" if is_flagged("optional") => parts(" | "),
        "oneof" => format!("<{}>", parts(" | ")),
        "block" => parts(" "),
        _ if token.is_empty() => value,
        _ => format!("{token} {value}"),
    };
    match (is_flagged("multiple"), is_flagged("optional")) {
        (true, true) => shown = format!("[{shown} ...]"),
        (true, false) => shown = format!("{shown} [{shown} ...]"),
        (false, true) => shown = format!("[{shown}]"),
        (false, false) => {}
    }
    shown
}

/// A reply that is a list of names and values.
fn map(reply: &Value) -> BTreeMap<String, Value> {
    elements(reply).chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect()
}

#[test]
fn each_command_has_the_documented_syntax() {
    let server = server("docs/commands.md");
    if server.version().lacks("COMMAND DOCS", (7, 0)) {
        return;
    }
    let mut conn = server.conn();
    let ours = conn.array("COMMAND LIST FILTERBY MODULE ratelimit");
    let ours: BTreeSet<_> = ours.iter().map(|name| text(name).to_uppercase()).collect();
    assert_eq!(command_names().collect::<BTreeSet<_>>(), ours);
    for (name, documented) in syntaxes() {
        let docs = map(&conn.cmd(format!("COMMAND DOCS {name}")));
        let docs = map(docs.values().next().unwrap());
        for field in ["summary", "complexity", "since"] {
            assert!(docs.contains_key(field), "{name} has no {field}");
        }
        let arguments = match docs.get("arguments") {
            Some(Value::Array(arguments)) => arguments.iter().map(syntax).collect(),
            _ => vec![],
        };
        let shown = [vec![name.clone()], arguments].concat().join(" ");
        assert_eq!(documented, shown);
    }
}

/// Calls that end with an error, one after the other on a server with the load arguments of [`REFUSING`]. The clock
/// stands in 2256 for the last one.
const REFUSED: &[&str] = &[
    "RL.WINDOW k 5 60 1 BAN 0",
    "RL.ALL 1 k WINDOW 5 60 ELSE",
    "RPUSH list x",
    "RL.INFO list",
    "RL.WINDOW k",
    "RL.WINDOW k 5 60 SOON",
    "RL.THROTTLE k 1 1 1 COUNTDENIED",
    "RL.WINDOW k 5 60 BUCKETS",
    "RL.WINDOW k 5 60 MS MS",
    "RL.WINDOW k 5 60 BUCKETS 9 FIXED",
    "RL.WINDOW k 5 60 LEAVE 1 FORCE",
    "RL.THROTTLE k 1 1 1 BLOCK 1 AHEAD 1",
    "RL.ALL 1 k WINDOW 5 60 CHECK SHADOW",
    "RL.THROTTLE k x 1 1",
    "RL.THROTTLE k 1 0 1",
    "RL.THROTTLE k 999999999 1 1d",
    "RL.THROTTLE k 1 1 1mo",
    "RL.WINDOW k -1 60",
    "RL.WINDOW k 5 0",
    "RL.ACQUIRE k 5 00",
    "RL.WINDOW k 5 1m",
    "RL.WINDOW k 5 60 1.5",
    "RL.ACQUIRE k 5 60 -1",
    "RL.WINDOW k 5 60 LEAVE -1",
    "RL.WINDOW k 5 60 -1 ATMOST",
    "RL.WINDOW k 5 60 0 BAN 1s",
    "RL.THROTTLE k 0 1 20000d 3 FORCE",
    "RL.WINDOW sum 5 60 9223372036854775807 FORCE",
    "RL.WINDOW sum 5 60 FORCE",
    "RL.THROTTLE k 1 1 1 AHEAD 0",
    "RL.WINDOW k 5 60 BUCKETS 0",
    "RL.WINDOW k 5 7min FIXED",
    "RL.WINDOW k 5 1d FIXED TZ Here",
    "RL.WINDOW k 5 1d FIXED FROM noon",
    "RL.WINDOW k 5 1y FIXED FROM 02-30",
    "RL.WINDOW k 5 1d FIXED FROM sun",
    "RL.WINDOW k 5 1d FROM 09:00",
    "RL.WINDOW k 5 1d TZ UTC",
    "RL.ACQUIRE k 5 0 FIXED",
    "RL.ACQUIRE k 5 0 COUNTLAPSED",
    "RL.ACQUIRE k 5 60 LEASE 0",
    "RL.RELEASE k \"\"",
    "RL.ACQUIRE one 5 0 ID a",
    "RL.ACQUIRE one 5 0 ID a",
    "RL.ACQUIRE one 5 0 ID b",
    "RL.APPLY one a",
    "RL.WINDOW k 5 60 BLOCK 2y",
    "RL.WINDOW k 5 60 BLOCK 2m",
    "RL.ACQUIRE one 1 0 BLOCK 1",
    "RL.ALL 65 k WINDOW 5 60",
    "RL.ALL 2 k k WINDOW 5 60 WINDOW 5 60",
    "RL.ALL 1 k HELD",
    "RL.ALL 1 k WINDOW 5 60 AHEAD 1s",
    "RL.WINDOW k 5 60 BY x",
    "RL.WINDOW k 5 60 BLOCK 1s BY \"\"",
    "RL.WINDOW k 5 60 BLOCK 1s BY x WEIGHT 0",
    "RL.ALL 2 k l WINDOW 5 60",
    "RL.WINDOW k @none",
    "RL.WINDOW k @free",
    "RL.THROTTLE k @day",
    "RL.WINDOW k @jobs",
    "RL.WINDOW k @day BUCKETS 5",
    "RL.TOP COUNT 0",
    "RL.TOP COUNT",
    "SET text x",
    "RL.THROTTLE text 1 1 1",
    "RL.WINDOW text 5 60",
    "ZADD set 1 x",
    "RL.THROTTLE set 1 1 1",
    "RL.WINDOW set 5 60",
    "RL.ALL 2 k set WINDOW @any LIMITS",
    "HSET hash any WINDOW",
    "RL.ALL 2 k hash WINDOW @any LIMITS",
    "RL.ALL 3 k l hash WINDOW 5 60 LIMITS",
    "RL.WINDOW k 5 60",
];

/// At most one reservation, no waiting calls, and a policy of each kind.
const REFUSING: [&str; 6] = [
    "max-reservations",
    "1",
    "max-waiters",
    "0",
    "policies",
    "free THROTTLE 1 1 1; day WINDOW 5 60; jobs WINDOW 5 0",
];

/// Compares a text with a pattern in which `<...>` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('<') {
        None => pattern == text,
        Some((before, rest)) => {
            let (_, after) = rest.split_once('>').unwrap();
            let rest = text.strip_prefix(before);
            rest.is_some_and(|rest| (0..=rest.len()).any(|at| matches(after, &rest[at..])))
        }
    }
}

#[test]
fn every_documented_error_occurs_and_no_other() {
    let page = file("docs/commands.md");
    let table = page.split("The module's are:").nth(1).unwrap().split("\n#").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let documented: Vec<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let server = Server::builder().module_args(REFUSING).with_clock_at(DOCS_US);
    let mut conn = server.conn();
    let mut met = BTreeSet::new();
    for (number, call) in (1..).zip(REFUSED) {
        if number == REFUSED.len() {
            server.clock().set_us(unix_us("2256-01-01T00:00:00"));
        }
        let reply = conn.cmd(split(call).unwrap());
        if let Value::ServerError(_) = reply {
            let error = error_line(&reply);
            let found: Vec<_> =
                documented.iter().filter(|documented| matches(documented, &error)).collect();
            assert_eq!(found.len(), 1, "{call} answers {error}, which is documented as {found:?}");
            assert!(!error.contains("internal error"), "{call} answers {error}");
            met.insert(*found[0]);
        }
    }
    let strict = Server::builder().module_args(["policies-only", "yes"]).start();
    let error = strict.conn().err("RL.WINDOW k 5 60");
    met.extend(documented.iter().filter(|documented| **documented == error));
    let unmet: Vec<_> = documented.iter().filter(|documented| !met.contains(*documented)).collect();
    // No server keeps a key in use so far.
    let never = [
        "TRYAGAIN the server cannot write the key at the moment: call again",
        "ERR internal error of redis-ratelimit, see the server's log",
    ];
    assert_eq!(unmet, never.iter().collect::<Vec<_>>());
}

#[test]
fn every_documented_reason_to_refuse_policies_occurs() {
    let server = Server::start();
    if server.version().lacks_settings() {
        return;
    }
    let page = file("docs/commands.md");
    let table = page.split("\n| reason | where |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut documented: BTreeSet<_> = table.split('`').skip(1).step_by(2).collect();
    let many: String = (0..=1_000).map(|number| format!("n{number} WINDOW 1 1;")).collect();
    for wrong in [
        "a! WINDOW 5 60", "a WINDOW 5 60; a WINDOW 5 60", "a", "a WINDOW 5",
        "a WINDOW 5 60 b WINDOW 5 60", &many,
    ] {
        let error = server.conn().err(["CONFIG", "SET", "ratelimit.policies", wrong]);
        let found = documented.iter().copied().find(|documented| error.ends_with(*documented));
        assert!(found.is_some_and(|found| documented.remove(found)), "{wrong}: {error}");
    }
    assert!(documented.is_empty(), "{documented:?}");
}

#[test]
fn every_field_of_info_is_documented_and_no_other() {
    let mut documented = BTreeSet::new();
    let page = file("docs/commands.md");
    for field in page.split('`').filter(|code| code.starts_with("ratelimit_")) {
        for name in command_names() {
            let name = name.to_lowercase().replace("rl.", "").replace('.', "_");
            for policy in ["free", "day", "trial", "jobs"] {
                documented.insert(field.replace("<command>", &name).replace("<name>", policy));
            }
        }
    }
    let info = server("docs/commands.md").conn().text("INFO ratelimit");
    let fields = info.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned()));
    assert_eq!(fields.collect::<BTreeSet<_>>(), documented);
}

#[test]
fn every_link_leads_somewhere() {
    let anchor = |heading: &str| {
        let plain = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        plain.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect::<String>()
    };
    let mut links = 0;
    for page in &pages() {
        for link in file(page).split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            links += 1;
            let (file_name, part) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(page).parent().unwrap();
            let path = if file_name.is_empty() { page.into() } else { folder.join(file_name) };
            if part.is_empty() {
                assert!(root().join(path).exists(), "{page}: {link}");
                continue;
            }
            let text = file(path.to_str().unwrap());
            let found = text.lines().any(|line| line.starts_with('#') && anchor(line) == part);
            assert!(found, "{page}: {link}");
        }
    }
    assert!(links >= 20);
}

/// A setting of redis.conf.example: its default, and its range if it is a number.
struct ExampleSetting {
    name: String,
    default: String,
    range: Option<(i64, i64)>,
}

fn settings() -> Vec<ExampleSetting> {
    let file = file("redis.conf.example");
    let mut settings = Vec::new();
    let mut comment = String::new();
    for line in file.lines() {
        let text = line.trim_start_matches('#').trim();
        let Some((name, default)) =
            line.strip_prefix("# ratelimit.").and_then(|it| it.split_once(' '))
        else {
            comment = if line.is_empty() { String::new() } else { format!("{comment} {text}") };
            continue;
        };
        let default = default.trim_matches('"');
        // "From 1 to 65536."
        let range = comment.rsplit_once("From ").map(|(_, range)| {
            let mut words = range.split([' ', '.']);
            let least = words.next().unwrap().parse().unwrap();
            assert_eq!(words.next(), Some("to"), "{comment}");
            (least, words.next().unwrap().parse().unwrap())
        });
        settings.push(ExampleSetting { name: name.to_owned(), default: default.to_owned(), range });
        comment.clear();
    }
    settings
}

fn config(conn: &mut Conn, pattern: &str) -> BTreeMap<String, String> {
    let pairs = conn.array(format!("CONFIG GET {pattern}"));
    pairs.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

#[test]
fn a_server_starts_with_the_example_file_whether_its_settings_are_comments_or_not() {
    let own = root().join("redis.conf.example");
    let server = Server::builder().config(format!("include {}", own.to_str().unwrap())).start();
    assert_eq!(server.conn().ints("RL.THROTTLE user:1 15 30 60 1"), [0, 16, 15, -1, 2]);
    if server.version().lacks_settings() {
        return;
    }
    let all = file("redis.conf.example").replace("# ratelimit.", "ratelimit.");
    let file = server.dir().join("all.conf");
    fs::write(&file, all).unwrap();
    let other = Server::builder().config(format!("include {}", file.to_str().unwrap())).start();
    let after = config(&mut other.conn(), "ratelimit.*");
    assert_eq!(after, config(&mut server.conn(), "ratelimit.*"));
    assert_eq!(after.len(), 12);
}

#[test]
fn each_setting_has_the_default_and_range_that_the_example_file_says() {
    let (server, mut conn) = Server::connect();
    if server.version().lacks_settings() {
        return;
    }
    let all = config(&mut conn, "ratelimit.*");
    let settings = settings();
    assert_eq!(all.len(), settings.len());
    for ExampleSetting { name, default, range } in settings {
        let name = format!("ratelimit.{name}");
        assert_eq!(all[&name], default, "{name}");
        let Some((least, most)) = range else { continue };
        for value in [least, most] {
            assert_eq!(conn.text(format!("CONFIG SET {name} {value}")), "OK");
        }
        for value in [least - 1, most + 1] {
            let error = conn.err(format!("CONFIG SET {name} {value}"));
            let range = format!(" - must be an integer from {least} to {most}");
            assert!(error.trim_end_matches(" ms").ends_with(&range), "{error}");
            assert_eq!(config(&mut conn, &name)[&name], most.to_string(), "{name} {value}");
        }
    }
}

#[test]
fn every_line_that_a_reader_may_copy_is_answered() {
    let (_server, mut conn) = Server::connect();
    let mut lines = 0;
    for page in ["docs/choosing.md", "docs/operations.md"] {
        let text = file(page);
        // The table of what is never exceeded has names in place of numbers, and so has the syntax.
        let copied = |row: &&str| {
            row.starts_with('|') && !row.contains("key b ") && !row.contains("key limit")
        };
        for code in text.lines().filter(copied).flat_map(|row| row.split('`').skip(1).step_by(2)) {
            let words: Vec<_> = code.split(' ').collect();
            let takes = ["RL.THROTTLE", "RL.WINDOW", "RL.ACQUIRE"].contains(&words[0]);
            if takes && words.len() > 1 {
                conn.cmd("FLUSHALL");
                assert_eq!(limited(&conn.cmd(code)), 0, "{code}");
                lines += 1;
            }
        }
    }
    assert!(lines > 15, "{lines}");
}

#[test]
fn pictures_and_tables_are_what_runs_draw() {
    let files = drawn::files();
    assert_eq!(files.len(), 7);
    for (path, text) in files {
        let committed = file(&path);
        let lines = || committed.lines().zip(text.lines());
        let differs = lines().find(|(committed, drawn)| committed != drawn);
        assert!(committed == text, "{path} is not what `make pictures` writes: {differs:#?}");
    }
}
