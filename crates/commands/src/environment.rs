//! What the arguments of a call refer to, as a trait of the server.

use crate::error::{Error, ZONES};
use crate::limits::WindowKind;
use crate::policies::{NamedLimit, Policies, Policy};
use crate::settings::{NumberSettings, DEFAULT_TIMEZONE};
use engine::anchor::Start;
use engine::calendar::{Calendar, Zone};
use engine::period::Period;
use engine::rule::Rule;
use engine::throttle::Rate;
use engine::WindowLimit;
use std::sync::Arc;

/// The settings, policies and time zones that the arguments of a call refer to, and the share of each limit that the server
/// grants.
///
/// A server in memory may grant only a [`Share`](crate::share::Share) of each limit. `scale_rate`, `scale_limit` and
/// `scale_leave` turn the numbers of the arguments into those of the share. By default the server grants the whole limit.
pub trait Environment {
    fn numbers(&self) -> &NumberSettings;

    /// Returns whether calls must name a policy instead of a limit in numbers (`policies-only`).
    fn policies_only(&self) -> bool;

    /// Returns the zone that the setting `timezone` was set to. `None` until it is set.
    fn chosen_timezone(&self) -> Option<Zone>;

    /// Returns the zone with this IANA name, in any case, or with this offset from UTC. `None` if there is no such zone.
    fn zone_by_name(&self, name: &[u8]) -> Option<Zone>;

    /// Returns the policy with this name, as it is now: a later change of the policies does not change it.
    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>>;

    fn policy_limit(&self, name: &[u8]) -> Result<NamedLimit, Error> {
        let policy = self.policy(name).ok_or_else(|| Error::NoPolicy(name.into()))?;
        Ok(NamedLimit { defined: policy.limit, policy_id: Some(policy.id) })
    }

    fn policies(&self) -> Policies;

    /// Returns the rate of these arguments. `None` if its bucket would take longer than 100 years to fill.
    #[inline]
    fn scale_rate(&self, max_burst: u64, count: u64, period_ms: u64) -> Option<Rate> {
        Rate::new(max_burst, count, period_ms)
    }

    /// Returns the limit of a window, or of a semaphore.
    #[inline]
    fn scale_limit(&self, limit: u64) -> u64 {
        limit
    }

    /// Returns the quantity that LEAVE keeps for others.
    #[inline]
    fn scale_leave(&self, leave: u64) -> u64 {
        leave
    }

    /// Returns the maximum number of entries of a sliding window of a call without BUCKETS.
    fn window_entries(&self) -> u32 {
        u32::try_from(self.numbers().window_entries.get()).unwrap_or(u32::MAX)
    }

    /// Returns the zone of calendar windows of a call without TZ. `None` only if time zones cannot be read.
    fn timezone(&self) -> Option<Zone> {
        self.chosen_timezone().or_else(|| self.zone_by_name(DEFAULT_TIMEZONE))
    }

    /// Returns the zone that a value of the setting `timezone` names.
    ///
    /// # Errors
    ///
    /// A text that says which values are allowed.
    fn read_timezone(&self, value: &[u8]) -> Result<Zone, String> {
        self.zone_by_name(value).ok_or_else(|| ZONES.into())
    }

    /// Returns the window of `limit` in each `period`, or a semaphore if there is no period. The settings say what `kind`
    /// leaves open.
    ///
    /// # Errors
    ///
    /// Those of FIXED and FROM: a period that does not fit the calendar or the anchor, and TZ with `FROM first`.
    fn window(
        &self,
        limit: u64,
        period: Option<Period>,
        kind: WindowKind,
    ) -> Result<WindowLimit, Error> {
        let limit = self.scale_limit(limit);
        let (rule, max_entries) = match (period, kind) {
            (None, _) => (Rule::Semaphore, 0),
            (Some(period), WindowKind::Sliding { buckets }) => {
                let max_entries = buckets.unwrap_or_else(|| self.window_entries());
                let buckets = (limit > u64::from(max_entries)).then_some(max_entries);
                (Rule::Sliding { period, buckets }, max_entries)
            }
            (Some(period), WindowKind::Fixed { start, zone }) => {
                (fixed_rule(period, start, zone, || self.timezone())?, 1)
            }
        };
        Ok(WindowLimit { limit, rule, max_entries })
    }
}

/// Returns the rule of FIXED, FROM and TZ. `timezone` returns the zone of a call without TZ.
fn fixed_rule(
    period: Period,
    start: Option<Start>,
    zone: Option<Zone>,
    timezone: impl FnOnce() -> Option<Zone>,
) -> Result<Rule, Error> {
    let in_zone = || zone.or_else(timezone).ok_or(Error::InvalidZone);
    let calendar = match start {
        Some(Start::First) if zone.is_some() => {
            return Err(Error::NotTogether("TZ", "FROM first"));
        }
        Some(Start::First) => return Ok(Rule::FromFirst(period)),
        Some(Start::Anchor(anchor)) => Calendar::anchored(period, anchor, in_zone()?)
            .map_err(|mismatch| Error::AnchorMismatch(anchor, mismatch))?,
        None => Calendar::new(period, in_zone()?).ok_or(Error::InvalidCalendarPeriod)?,
    };
    Ok(Rule::Calendar(calendar))
}
