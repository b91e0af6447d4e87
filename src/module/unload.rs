//! MODULE UNLOAD is refused if settings would be lost. The log then has the command that loads the module with them. It is
//! also refused if ACL rules name commands of the module, as the server would then crash. Servers keep pointers to the
//! commands that clients have sent, so the module closes the connections on which they would use one of its commands.

use super::registration::is_command;
use super::settings;
use crate::log::{log_notice, log_warning};
use crate::redis::config::has_settings;
use crate::redis::context::Context;
use crate::redis::load::own_path;
use crate::redis::users::{clients, close_connection, rules_are_applied_again, users};
use crate::state::State;

/// The maximum length of the piece of a command in one line of the log. Servers cut lines at 1,024 bytes.
const PIECE: usize = 880;

/// Returns whether MODULE UNLOAD may go on. If so, no client holds a command of the module any more.
pub fn prepare(state: &State, ctx: Context) -> bool {
    let may_unload = !is_refused_for_grants(state, ctx)
        && !is_refused_for_rules(state, ctx)
        && !is_refused_for_settings(state, ctx);
    if may_unload {
        close_connections(state, ctx);
    }
    may_unload
}

/// Refuses to unload while a grant is still to be given back, and logs that. While clients wait, the server itself refuses.
fn is_refused_for_grants(state: &State, ctx: Context) -> bool {
    let is_refused = state.waiting.has_lines();
    if is_refused {
        log_warning(ctx, "MODULE UNLOAD is refused until what was granted to a client that is gone was given back");
    }
    is_refused
}

/// Refuses to unload if the server would crash when it applies the rules of its users again without the module, and logs
/// which users these are.
fn is_refused_for_rules(state: &State, ctx: Context) -> bool {
    if !rules_are_applied_again() {
        return false;
    }
    let users = users(ctx);
    let names: Vec<_> = users.iter().filter_map(|line| user_with_command(state, line)).collect();
    if names.is_empty() {
        return false;
    }
    let mut line = format!(
        "MODULE UNLOAD is refused, as the server would crash: ACL rules name commands of the module. Send ACL SETUSER NAME \
         -@all first, and give the users their rules again after the load: {}",
        names.join(" ")
    );
    line.truncate(PIECE);
    log_warning(ctx, &line);
    true
}

/// Returns the name of the user in a line of ACL LIST, escaped, if a rule names a command of the module, as in
/// `+rl.throttle`, `-rl.throttle`, `+rl.throttle|word` or `(~key:* +rl.throttle)`.
fn user_with_command(state: &State, line: &[u8]) -> Option<String> {
    let mut words = line.split(|byte| b" ()".contains(byte)).skip(1);
    let name = words.next()?.escape_ascii().to_string();
    let is_named = |word: &[u8]| match word {
        [b'+' | b'-', rule @ ..] => {
            rule.split(|byte| *byte == b'|').next().is_some_and(|name| is_command(state, name))
        }
        _ => false,
    };
    words.any(is_named).then_some(name)
}

/// Closes the connections on which the server would use a command after it is gone. Servers keep a pointer to the last
/// command of a client, for CLIENT LIST and (Redis 8) to look up its next command; to the commands of an open transaction;
/// and (Redis 8.4, Valkey 9) to those that wait behind a blocking command.
fn close_connections(state: &State, ctx: Context) {
    let list = clients(ctx);
    let ids: Vec<_> =
        list.split(|byte| *byte == b'\n').filter_map(|line| client_to_close(state, line)).collect();
    ids.iter().for_each(|id| close_connection(ctx, id));
    if !ids.is_empty() {
        log_notice(ctx, &format!("MODULE UNLOAD closed {} connections", ids.len()));
    }
}

/// Returns the id of the client in a line of CLIENT LIST if its connection has to be closed.
fn client_to_close<'l>(state: &State, line: &'l [u8]) -> Option<&'l [u8]> {
    let field = |name: &str| {
        let mut words = line.split(|byte| *byte == b' ');
        words.find_map(|word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let command = field("cmd")?;
    // The client whose transaction has MODULE UNLOAD has sent EXEC.
    let is_open = !matches!(field("multi")?, b"-1" | b"0") && command != b"exec";
    let flags = field("flags")?;
    // A master sends no commands of the module.
    let is_master = flags.contains(&b'M');
    let is_to_close = is_command(state, command) || is_open || flags.contains(&b'b');
    field("id").filter(|_| is_to_close && !is_master)
}

/// Refuses to unload if settings are not at their defaults, unless `allow-unload` permits to lose them. Logs the command
/// that loads the module with them in either case.
fn is_refused_for_settings(state: &State, ctx: Context) -> bool {
    let changed = settings::changed_settings();
    if changed.is_empty() {
        return false;
    }
    let permitted = state.allow_unload.get();
    let lost = match changed.len() {
        1 => "a setting that is not at its default".into(),
        number => format!("{number} settings that are not at their defaults"),
    };
    let explanation = match (permitted, has_settings()) {
        (true, _) => format!("MODULE UNLOAD loses {lost}. The next line loads the module with them"),
        (false, true) => format!(
            "MODULE UNLOAD is refused, as it would lose {lost}. CONFIG SET ratelimit.allow-unload yes permits it. The next line \
             then loads the module with them"
        ),
        (false, false) => format!(
            "MODULE UNLOAD is refused, as it would lose {lost}. The load argument allow-unload yes permits it; this server \
             has to be restarted for that. The next line loads the module with them"
        ),
    };
    log_warning(ctx, &explanation);
    let path = own_path().unwrap_or_else(|| b"libredis_ratelimit.so".to_vec());
    let line = load_line(&path, &changed, has_settings());
    let pieces = pieces(&line);
    for (at, piece) in pieces.iter().enumerate() {
        match pieces.len() {
            1 => log_warning(ctx, piece),
            number => log_warning(
                ctx,
                &format!("(part {} of {number}, join with spaces) {piece}", at.saturating_add(1)),
            ),
        }
    }
    !permitted
}

/// Returns the command that loads the module with these settings. On servers without settings of modules it is MODULE LOAD
/// with load arguments, including the permission to unload, which cannot be set later there.
fn load_line(path: &[u8], changed: &[(&str, Vec<u8>)], has_settings: bool) -> String {
    let (command, before, permission) = match has_settings {
        true => ("MODULE LOADEX", " CONFIG ratelimit.", ""),
        false => ("MODULE LOAD", " ", " allow-unload yes"),
    };
    let mut line = format!("{command} {}{permission}", quoted(path));
    for (name, value) in changed {
        line.extend([before, name, " ", &quoted(value)]);
    }
    line
}

/// Returns a word of a command, in quotes if redis-cli needs them.
fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return String::from_utf8_lossy(word).into_owned();
    }
    let escaped = word.iter().map(|byte| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Cuts a line of ASCII at spaces, into pieces that are short enough for the log.
fn pieces(mut line: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    while let Some((start, _)) = line.split_at_checked(PIECE) {
        // A longer word is cut. Only a table of policies can have one, of semicolons, where another space does no harm.
        let end = start.rfind(' ').unwrap_or(PIECE);
        let (piece, rest) = line.split_at_checked(end).unwrap_or((line, ""));
        pieces.push(piece);
        line = rest.strip_prefix(' ').unwrap_or(rest);
    }
    pieces.push(line);
    pieces
}

#[cfg(test)]
mod tests;
