//! Calls that the engine decides without words: of one limit in numbers, with no option but LEAVE. Other calls are written
//! as a command, as for a server.

use std::time::Duration;

use commands::environment::Environment;
use commands::error::Error;
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
use crate::{Decision, Period, Reply};

/// The largest number that a server accepts.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// A limit in numbers, each of which is in the range that a server accepts.
#[derive(Clone, Copy, Debug)]
enum LimitNumbers {
    /// `max_burst`, `count` and the period of a rate.
    Rate { max_burst: u64, count: u64, period_ms: u64 },
    /// The limit, the period and the kind of a window.
    Window { limit: u64, period: period::Period, kind: WindowKind },
}

impl LimitNumbers {
    /// Returns the numbers; `None` if one is out of range, or only a command can say what the limit is.
    fn new(limit: &AnyLimit) -> Option<LimitNumbers> {
        match limit {
            AnyLimit::Rate(rate) => {
                let (max_burst, count, period) = rate.numbers()?;
                let Length::Ms(period_ms) = engine_period(period)?.length() else { return None };
                let is_in_range = max_burst < MAX_NUMBER && (1..=MAX_NUMBER).contains(&count);
                is_in_range.then_some(LimitNumbers::Rate { max_burst, count, period_ms })
            }
            AnyLimit::Window(window) => {
                let (limit, period) = window.numbers()?;
                let (start, buckets) = (window.starts_at(), window.buckets);
                let kind = match (window.is_fixed(), buckets) {
                    _ if window.tz.is_some() => return None,
                    (false, None | Some(1..=65_536)) if start.is_none() => {
                        WindowKind::Sliding { buckets }
                    }
                    (true, None) => {
                        let start = start.map(|start| Start::parse(start.as_bytes())).transpose();
                        WindowKind::Fixed { start: start.ok()?, zone: None }
                    }
                    _ => return None,
                };
                let period = engine_period(period)?;
                (limit <= MAX_NUMBER).then_some(LimitNumbers::Window { limit, period, kind })
            }
            AnyLimit::Semaphore(_) => None,
        }
    }

    /// Returns the limit of the engine, with the share and the settings of `server`.
    fn for_server(&self, server: &MemoryServer) -> Result<EngineLimit, Error> {
        let share = server.share();
        match *self {
            LimitNumbers::Rate { max_burst, count, period_ms } => {
                let rate = share.scale_rate(max_burst, count, period_ms);
                rate.map(EngineLimit::Rate).ok_or(Error::BucketTooLong)
            }
            LimitNumbers::Window { limit, period, kind } => {
                let window = server.window(share.scale_limit(limit), Some(period), kind);
                window.map(EngineLimit::Window)
            }
        }
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

/// A call of [`Limiter::take`](crate::Limiter::take) or [`Limiter::look`](crate::Limiter::look).
#[derive(Debug)]
pub(crate) struct TypedCall {
    key: Box<[u8]>,
    limit: LimitNumbers,
    quantity: i64,
    leave: u64,
    only_looks: bool,
}

impl TypedCall {
    /// Creates a call; `None` if it has to be written as a command, also because only that says what is wrong with it.
    pub fn new(call: &LimitCall<'_>) -> Option<TypedCall> {
        let LimitCall { kind, key, limit, quantity, options, .. } = call;
        let only_looks = match kind {
            CallKind::Take => false,
            CallKind::Look => true,
            CallKind::LookToReserve | CallKind::Reserve => return None,
        };
        let leave = options.leave;
        let may_leave = leave == 0 || (*quantity >= 0 && leave <= MAX_NUMBER);
        let has_only_leave = !options.at_most
            && !options.force
            && !options.count_denied
            && options.ahead.is_none()
            && options.block.is_none();
        if !may_leave || !has_only_leave || limit.ban_length().is_some() {
            return None;
        }
        let limit = LimitNumbers::new(limit)?;
        Some(TypedCall { key: (*key).into(), limit, quantity: *quantity, leave, only_looks })
    }

    /// Decides the call on the keys of `server`.
    pub fn decide(&self, server: &mut MemoryServer, now_us: u64) -> Result<Reply, Error> {
        let environment = &*server;
        if environment.policies_only() {
            return Err(Error::PoliciesOnly);
        }
        let mut request = Request::new(self.limit.for_server(environment)?);
        request.ask.quantity = Quantity::from_signed(self.quantity);
        request.ask.leave = environment.share().scale_leave(self.leave);
        request.unit = TimeUnit::Milliseconds;
        let decision = server.decide(&self.key, &request, self.only_looks, now_us)?;
        Ok(Reply::from(&decision))
    }
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
