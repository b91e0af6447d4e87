//! Calls that the engine decides without words: of one limit in numbers, with no option but LEAVE.

use std::time::Duration;

use commands::environment::Environment;
use commands::limits::WindowKind;
use commands::memory::MemoryServer;
use engine::anchor::Start;
use engine::period::{self, Length};
use engine::{
    Decision as EngineDecision, Limit as EngineLimit, Obstacle, Quantity, Request, TimeUnit,
    Verdict,
};

use crate::calls::{CallKind, LimitCall};
use crate::limit::AnyLimit;
use crate::options::Options;
use crate::{Decision, Period, Reply};

/// The largest number that a server accepts.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// Returns the engine's request for a call. `None` if it has to be written as a command, also because only that says what
/// is wrong with it.
pub(super) fn request(call: &LimitCall<'_>, server: &MemoryServer) -> Option<Request> {
    let LimitCall { kind, limit, quantity, options, .. } = call;
    let Options { leave, .. } = *options;
    let is_plain = matches!(kind, CallKind::Take | CallKind::Look)
        && *options == Options { leave, ..Options::default() }
        && limit.ban_length().is_none()
        && !server.policies_only();
    let may_leave = leave == 0 || (*quantity >= 0 && leave <= MAX_NUMBER);
    if !is_plain || !may_leave {
        return None;
    }
    let mut request = Request::new(engine_limit(limit, server)?);
    request.ask.quantity = Quantity::from_signed(*quantity);
    request.ask.leave = server.share().scale_leave(leave);
    request.unit = TimeUnit::Milliseconds;
    Some(request)
}

fn engine_limit(limit: &AnyLimit, server: &MemoryServer) -> Option<EngineLimit> {
    match limit {
        AnyLimit::Rate(rate) => {
            let (max_burst, count, period) = rate.numbers()?;
            let Length::Ms(period_ms) = engine_period(period)?.length() else { return None };
            if max_burst >= MAX_NUMBER || !(1..=MAX_NUMBER).contains(&count) {
                return None;
            }
            server.share().scale_rate(max_burst, count, period_ms).map(EngineLimit::Rate)
        }
        AnyLimit::Window(window) => {
            let (max, period) = window.numbers()?;
            let kind = match (window.is_fixed(), window.buckets, window.starts_at()) {
                _ if window.tz.is_some() || max > MAX_NUMBER => return None,
                (false, buckets @ (None | Some(1..=65_536)), None) => {
                    WindowKind::Sliding { buckets }
                }
                (true, None, start) => {
                    let start = start.map(|start| Start::parse(start.as_bytes())).transpose();
                    WindowKind::Fixed { start: start.ok()?, zone: None }
                }
                _ => return None,
            };
            let max = server.share().scale_limit(max);
            server.window(max, Some(engine_period(period)?), kind).ok().map(EngineLimit::Window)
        }
        AnyLimit::Semaphore(_) => None,
    }
}

/// Returns the period for the engine; `None` if it is out of range.
fn engine_period(Period { count, unit }: Period) -> Option<period::Period> {
    let unit = match unit.symbol() {
        "ms" => period::Unit::Millisecond,
        "" | "s" => period::Unit::Second,
        "min" => period::Unit::Minute,
        "h" => period::Unit::Hour,
        "d" => period::Unit::Day,
        "w" => period::Unit::Week,
        "mo" => period::Unit::Month,
        "y" => period::Unit::Year,
        _ => return None,
    };
    period::Period::new(count, unit).ok()
}

impl From<&EngineDecision> for Reply {
    fn from(decision: &EngineDecision) -> Reply {
        let wait = |us| Duration::from_millis(TimeUnit::Milliseconds.round_up(us));
        Reply {
            decision: match decision.verdict {
                Verdict::Allowed { .. } => Decision::Allowed,
                Verdict::Denied { obstacle: Obstacle::Held, .. } => Decision::Held,
                Verdict::Denied { obstacle: Obstacle::Counted, .. } | Verdict::Never => {
                    Decision::Denied
                }
            },
            limit: decision.limit,
            remaining: decision.remaining,
            retry_after: decision.verdict.retry_after_us().map(wait),
            reset_after: wait(decision.reset_after_us),
            reachable: true,
            ..Reply::unreached(false)
        }
    }
}
