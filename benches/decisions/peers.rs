//! The Lua scripts that people use today, written for this comparison.

use crate::client::{Batch, Client, Result};

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
    pub fn load(client: &mut Client) -> Result<Scripts> {
        let mut load = |source: &str| -> Result<String> {
            client.send(&Batch::words(["SCRIPT", "LOAD", source]))?;
            Ok(client.receive()?.text().to_string())
        };
        Ok(Scripts {
            gcra: load(include_str!("peers/gcra.lua"))?,
            window: load(include_str!("peers/window.lua"))?,
            acquire: load(include_str!("peers/acquire.lua"))?,
            apply: load(include_str!("peers/apply.lua"))?,
            semaphore: load(include_str!("peers/semaphore.lua"))?,
            several: load(include_str!("peers/several.lua"))?,
        })
    }
}
