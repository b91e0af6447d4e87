//! All that outlives a call. A load creates it, and MODULE UNLOAD drops it, so that nothing is left for the next load.
//!
//! The server calls the module under one lock, so a value that changes is an [`UnderLock`] or an atomic number. Only INFO of
//! a crashing server comes without that lock, on any thread. It reads nothing but atomic numbers: the counters in
//! [`State::stats`] and [`Waiting::longest_work_us`]. No server asks for the keys of a command in a thread of its own (see
//! redis/declaration.rs).
//!
//! The functions that the server calls get the state with [`State::get`], and lend it to what they call.

use crate::keys::indexes::KeyIndexes;
use crate::redis::clock::ClockWatch;
use crate::redis::key::ReplicatedWords;
use crate::redis::load::LoadWatch;
use crate::redis::random::RandomPool;
use crate::redis::text::OwnedString;
use crate::redis::under_lock::{UnderLock, WhileLoaded};
use crate::stats::Stats;
use crate::waiting::Waiting;
use crate::zoneinfo::{self, Zoneinfo};
use commands::policies::PolicyTable;
use commands::settings::{NumberSettings, SwitchSetting};
use engine::calendar::{Zone, Zones};
use engine::top_keys::TopKeys;

#[derive(Default)]
pub struct State {
    // ---- Settings. Their table is in module/settings.rs. ----
    pub numbers: NumberSettings,
    /// `policies-only`: limits must be given as policies.
    pub policies_only: SwitchSetting,
    /// `notify-denied`: denials are published as keyspace events.
    pub notify_denied: SwitchSetting,
    /// `cl-throttle`: the module also answers CL.THROTTLE.
    pub cl_throttle: SwitchSetting,
    /// `allow-unload`: MODULE UNLOAD may lose settings.
    pub allow_unload: SwitchSetting,
    /// `policies`, and the counters of the calls on each of them.
    pub policies: UnderLock<PolicyTable>,
    /// `timezone`. `None` until it is set.
    pub timezone: UnderLock<Option<Zone>>,
    pub zoneinfo: UnderLock<Zoneinfo>,
    /// The time zones that calls and settings have named.
    pub zones: UnderLock<Zones>,
    /// The value of a setting that the server asked for last.
    pub shown_setting: UnderLock<Option<OwnedString>>,

    // ---- What calls leave behind ----
    /// Counters for INFO. A crash report reads them on any thread.
    pub stats: Stats,
    /// The keys that were denied most, for RL.TOP.
    pub most_denied: UnderLock<TopKeys>,
    /// The reservations of keys that hold many.
    pub indexes: KeyIndexes,
    /// The calls that wait. A crash report reads [`Waiting::longest_work_us`] on any thread.
    pub waiting: Waiting,

    // ---- What the module keeps of the server ----
    /// Notices when the wall clock is set back.
    pub clock: UnderLock<ClockWatch>,
    /// Finds out whether the command that loaded the module has ended.
    pub load: UnderLock<LoadWatch>,
    /// Words of replicated commands.
    pub replicated_words: UnderLock<ReplicatedWords>,
    /// Random bytes for the next ids.
    pub random: UnderLock<RandomPool>,
}

/// The only static of the module that changes. A load creates the value.
pub static STATE: WhileLoaded<State> = WhileLoaded::new();

impl State {
    pub fn new() -> State {
        let zones = Zones::with_source(|name| {
            let folder = State::get().zoneinfo.with(|zoneinfo| zoneinfo.folder.clone());
            zoneinfo::rules(&folder, name)
        });
        let state = State { zones: UnderLock::new(zones), ..State::default() };
        state.forget_denials();
        state
    }

    #[cfg(not(test))]
    pub fn get() -> &'static State {
        STATE.get()
    }

    /// Returns the state of this test, which has a thread and a server of its own.
    #[cfg(test)]
    pub fn get() -> &'static State {
        thread_local! {
            static TEST_STATE: &'static State = {
                crate::redis::fake::install();
                Box::leak(Box::new(State::new()))
            };
        }
        TEST_STATE.with(|state| *state)
    }

    /// Forgets which keys were denied. The setting `top-keys` says how many are counted from now on.
    pub fn forget_denials(&self) {
        let keys = usize::try_from(self.numbers.top_keys.get()).unwrap_or(usize::MAX);
        drop(self.most_denied.replace(TopKeys::new(keys)));
    }
}
