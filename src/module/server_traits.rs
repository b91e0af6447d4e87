//! What the server has to know about each command in addition to its row of the table.

use crate::redis::declaration::{KeyAccess, KeyPositions};
use commands::table::Command;

pub struct ServerTraits {
    /// The positions of the keys, and the command's access to them.
    pub keys: KeyPositions,
    /// Flags of RedisModule_CreateCommand.
    pub flags: &'static str,
    /// The ACL categories that the server would derive from the flags for a command of its own.
    pub categories: &'static str,
}

impl ServerTraits {
    // Inlined into each entry, where the command is known and only the keys are used.
    #[inline(always)]
    pub fn for_command(command: Command) -> ServerTraits {
        use KeyPositions::{Counted, First};
        let (keys, flags, categories) = match command {
            Command::Take(_) => {
                (First(KeyAccess::Update), "write deny-oom fast blocking", "write fast blocking")
            }
            Command::ClThrottle => (First(KeyAccess::Update), "write deny-oom fast", "write fast"),
            // Without deny-oom, because releasing must work when memory is short.
            Command::Apply | Command::Release | Command::Renew => {
                (First(KeyAccess::Update), "write fast", "write fast")
            }
            Command::Look(_) => (First(KeyAccess::Read), "readonly fast", "read fast"),
            // Slow, because their cost grows with what the key holds.
            Command::Held | Command::Info => (First(KeyAccess::Read), "readonly", "read slow"),
            Command::All => {
                let flags = "write deny-oom blocking";
                (Counted(KeyAccess::Update), flags, "write slow blocking")
            }
            Command::AllRo => (Counted(KeyAccess::Read), "readonly", "read slow"),
            // For operators only, because they show names of keys and limits.
            Command::Policies | Command::Top => {
                (KeyPositions::None, "readonly admin", "admin dangerous slow")
            }
        };
        ServerTraits { keys, flags, categories }
    }
}
