//! The Lua scripts that people use today, written for this comparison.

use support::Conn;

/// The scripts' SHA-1 sums, for EVALSHA.
#[derive(Clone)]
pub struct Scripts {
    pub gcra: String,
    pub window: String,
    pub acquire: String,
    pub apply: String,
    pub semaphore: String,
    /// The three commands of a decision about three limits, called by a script. Nobody uses this yet.
    pub several: String,
}

impl Scripts {
    pub fn load(conn: &mut Conn) -> Scripts {
        let mut load = |source: &str| conn.text(["SCRIPT", "LOAD", source]);
        Scripts {
            gcra: load(include_str!("peers/gcra.lua")),
            window: load(include_str!("peers/window.lua")),
            acquire: load(include_str!("peers/acquire.lua")),
            apply: load(include_str!("peers/apply.lua")),
            semaphore: load(include_str!("peers/semaphore.lua")),
            several: load(include_str!("peers/several.lua")),
        }
    }
}
