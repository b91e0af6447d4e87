//! Any calls on one window, compared with the engine's obvious model: a list of the admitted events. Nothing panics, each
//! wait in a reply suffices while a microsecond less does not, and what is written can be read again. For some rules each
//! reply is also the one of the list.
#![no_main]

use arbitrary::Arbitrary;
use engine::model::window_world::{rule, Obvious, WindowWorld};
use engine::model::{ModelCommand, START_US};
use engine::period::Length;
use engine::rule::Rule;
use engine::{Ask, Manner, Quantity};
use libfuzzer_sys::fuzz_target;

/// Rules, with that of the model if its list has exactly what they count.
const RULES: [(&str, Option<Obvious>); 15] = [
    ("1ms", Some(Obvious::Sliding(1_000))),
    ("4ms", Some(Obvious::Sliding(4_000))),
    ("1s@UTC", Some(Obvious::Fixed(1_000_000, 0))),
    ("10s^first", Some(Obvious::First(Length::Ms(10_000)))),
    ("60s", None),
    ("1mo", None),
    ("1s/1", None),
    ("60s/10", None),
    ("60s/4096", None),
    ("1y/12", None),
    ("1min@UTC", None),
    ("1d@America/New_York", None),
    ("7min@Asia/Kathmandu=tots0u", None),
    ("1mo@Europe/Berlin=1jqy0", None),
    ("-", None),
];
/// 1 January 2200.
const LATE_US: u64 = 7_258_118_400_000_000;
/// The largest limit and quantity, so that the model need not saturate.
const MOST: u64 = 1 << 50;

#[derive(Arbitrary, Debug)]
struct WindowInput {
    rule: u8,
    limit: u64,
    shift: u8,
    /// The initial total, so that it also wraps.
    total: u64,
    /// The most entries from the future that a call merges.
    max_healed: u8,
    steps: Vec<WindowStep>,
}

#[derive(Arbitrary, Debug)]
enum WindowStep {
    Move { us: i64, shift: u8 },
    Take { quantity: u64, shift: u8, leave: u64, manner: u8, kind: TakeKind },
    GiveBack { quantity: u32 },
    Apply { which: u8, quantity: u16 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum TakeKind {
    Count,
    CountDenied,
    Hold { lease_ms: u64, shift: u8 },
    Look,
}

fuzz_target!(|input: WindowInput| {
    let (text, mut obvious) = RULES[usize::from(input.rule) % RULES.len()];
    let (rule, semaphore) = (rule(text), text == "-");
    let limit = (input.limit >> (input.shift % 64)).min(MOST);
    let mut world = WindowWorld::with_total(input.total);
    world.max_healed = usize::from(input.max_healed);
    let (mut gave_back, mut stepped_back) = (false, false);
    for step in input.steps.iter().take(100) {
        let (ask, kind) = match *step {
            WindowStep::Move { us, shift } => {
                let to_us = world.now_us.saturating_add_signed(us >> (shift % 64));
                stepped_back |= to_us < world.now_us;
                world.now_us = to_us.clamp(START_US / 2, LATE_US);
                continue;
            }
            WindowStep::Apply { which, quantity } => {
                if !semaphore {
                    let obvious = obvious.unwrap_or(Obvious::Sliding(0));
                    world.settle(&rule, obvious, usize::from(which), u64::from(quantity));
                }
                continue;
            }
            WindowStep::GiveBack { .. } if semaphore => continue,
            WindowStep::GiveBack { quantity } => {
                gave_back = true;
                (Ask::whole(Quantity::GiveBack(u64::from(quantity).max(1))), ModelCommand::Count)
            }
            WindowStep::Take { quantity, shift, leave, manner, kind } => {
                // A semaphore takes only reservations, and no reservation is forced.
                let kind = match kind {
                    _ if semaphore => ModelCommand::Hold(9),
                    TakeKind::Count => ModelCommand::Count,
                    TakeKind::CountDenied => ModelCommand::CountDenied,
                    TakeKind::Hold { lease_ms, shift } => {
                        ModelCommand::Hold((lease_ms >> (shift % 64)).clamp(1, 31_557_600_000))
                    }
                    TakeKind::Look => ModelCommand::Look,
                };
                let is_hold = matches!(kind, ModelCommand::Hold(_));
                let (manner, leave) = match manner % 4 {
                    0 => (Manner::AtMost, leave >> (shift % 64)),
                    1 if !is_hold => (Manner::Force, 0),
                    _ => (Manner::Whole, leave >> (shift % 64)),
                };
                let quantity = Quantity::Take((quantity >> (shift % 64)).clamp(1, MOST));
                (Ask { leave, manner, ..Ask::whole(quantity) }, kind)
            }
        };
        if gave_back && stepped_back {
            // Events that were given back may count again. In windows of the calendar they may do so in parts.
            if !matches!(rule.rule, Rule::Sliding { .. }) {
                return;
            }
            obvious = None;
        }
        match obvious {
            Some(obvious) => {
                world.agree(&rule, obvious, limit, &ask, kind);
            }
            None => {
                world.call(&rule, limit, &ask, kind);
            }
        }
    }
});
