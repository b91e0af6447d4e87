use super::*;
use crate::policies::PolicyTable;
use engine::calendar::Zones;
use std::cell::RefCell;

/// The defaults of a server, for tests of arguments.
#[derive(Default)]
pub struct TestEnvironment {
    /// The settings that are numbers.
    pub numbers: Numbers,
    /// The zones that were named.
    pub zones: RefCell<Zones>,
    /// The table of policies.
    pub policies: RefCell<PolicyTable>,
}

impl Environment for TestEnvironment {
    fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn policies_only(&self) -> bool {
        false
    }

    fn chosen_timezone(&self) -> Option<Zone> {
        None
    }

    fn zone_by_name(&self, name: &[u8]) -> Option<Zone> {
        self.zones.borrow_mut().zone_by_name(name)
    }

    fn policies(&self) -> Policies {
        self.policies.borrow().policies().clone()
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.policies.borrow().policy_by_name(name)
    }
}
