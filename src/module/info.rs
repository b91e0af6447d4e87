//! INFO ratelimit.

use super::{build, settings};
use crate::redis::info::{Info, InfoSection};
use crate::state::State;
use commands::environment::Environment;
use commands::policies::PolicyCounts;
use commands::table::COMMANDS;
use std::ffi::CString;

pub struct ModuleSection;

impl InfoSection for ModuleSection {
    fn write(info: &Info, crashed: bool) {
        let state = State::get();
        info.text(c"version", build::VERSION);
        info.text(c"commit", build::COMMIT);
        for (command, stats) in COMMANDS.iter().zip(&state.stats.by_command) {
            let name = command.name.to_string_lossy();
            let name = name.trim_start_matches("rl.").replace('.', "_");
            for (outcome, counter) in
                [("allowed", &stats.allowed), ("denied", &stats.denied), ("errors", &stats.errors)]
            {
                if let Ok(field) = CString::new(format!("{name}_{outcome}")) {
                    info.number(&field, counter.get());
                }
            }
        }
        // A crashing server asks on the thread that crashed, while the main thread may be using these values.
        if !crashed {
            report_configuration(state, info);
            let (indexes, bytes) = state.indexes.totals();
            info.number(c"indexes", indexes);
            info.number(c"index_bytes", bytes);
            info.number(c"waiting", state.waiting.number());
            info.number(c"waiting_oldest_ms", state.waiting.oldest_wait_ms());
        }
        info.number(c"waiting_longest_turn_us", state.waiting.longest_work_us());
        info.number(c"waited_granted", state.stats.waited_granted.get());
        info.number(c"waited_timed_out", state.stats.waited_timed_out.get());
        info.number(c"reservations_applied", state.stats.applied.get());
        info.number(c"reservations_released", state.stats.released.get());
        info.number(c"reservations_lapsed", state.stats.lapsed.get());
    }
}

/// Reports the release of the time zones, the policies, and digests of policies and settings, so that servers can be
/// compared.
fn report_configuration(state: &State, info: &Info) {
    let text = |name: String, value: String| {
        if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
            info.text(&name, &value);
        }
    };
    let release = state.zoneinfo.with(|zoneinfo| zoneinfo.release.clone());
    let settings = [settings::reply_settings_text(), release.clone().into_bytes()].concat();
    text("tzdata".into(), release);
    text("settings_digest".into(), digest(&settings));
    let policies = state.policies();
    let lines = policies.iter().map(|(name, policy)| [name, " ", &policy.definition, ";"].concat());
    text("policies_digest".into(), digest(lines.collect::<String>().as_bytes()));
    for (name, policy) in policies {
        let PolicyCounts { allowed, denied, shadow_denied } = &*policy.counts;
        let (allowed, denied, shadow_denied) = (allowed.get(), denied.get(), shadow_denied.get());
        let value = format!("allowed={allowed},denied={denied},shadow_denied={shadow_denied}");
        text(format!("policy_{name}"), value);
    }
}

/// Returns the 64-bit FNV-1a hash, or 0 for no bytes.
fn digest(bytes: &[u8]) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let start = if bytes.is_empty() { 0 } else { OFFSET };
    let step = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(PRIME);
    format!("{:016x}", bytes.iter().fold(start, step))
}
