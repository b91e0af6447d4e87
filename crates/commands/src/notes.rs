//! What is noted of calls that have ended: the counts of policies, and denials.

use crate::policies::PolicyVerdict;
use crate::reply::Reply;
use engine::request::Request;

/// Where a server notes how calls ended. `K` names a key at the time of a call.
pub trait Notes<K: Copy> {
    /// Counts how a call on the policy of this number ended.
    fn count_policy(&self, id: u64, ended: PolicyVerdict);
    /// Notes a denial of a call that takes.
    fn note_denial(&self, key: K);

    /// Counts in its policy how a request ended, if it takes and has one.
    #[inline]
    fn count(&self, request: &Request, ended: PolicyVerdict) {
        if let Some(id) = request.policy.filter(|_| request.takes()) {
            self.count_policy(id, ended);
        }
    }

    /// Turns `reply` into the final reply to a request on this key, and notes how the call ended, which it returns.
    #[inline]
    fn note_end(&self, key: K, request: &Request, reply: &mut Reply) -> PolicyVerdict {
        let ended = reply.conclude(request);
        self.count(request, ended);
        if request.takes() && ended == PolicyVerdict::Denied {
            self.note_denial(key);
        }
        ended
    }
}
