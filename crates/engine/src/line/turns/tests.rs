//! Compares the turns in lines with a slow and obvious model: lists of calls with exact fractions for tags, which are
//! searched from one end to the other, and which forget nothing while somebody waits.

use super::*;
use crate::line::{LineTypes, Lines, NewWaiter};
use crate::properties::cases;
use crate::DbKey;
use num_rational::Ratio;
use proptest::prelude::*;

type Fraction = Ratio<i128>;

struct Callers;

impl LineTypes for Callers {
    type Call = ();
    type Handle = ();
    type Reply = ();
    type Write = ();
}

/// More names and calls than any test has.
const MANY: u64 = 10_000;

fn key(name: &u8) -> DbKey<'_> {
    DbKey { db: 0, name: std::slice::from_ref(name) }
}

/// A turn whose caller is a letter, or nobody.
#[derive(Clone, Copy, Debug)]
struct Asks {
    leave: u64,
    caller: Option<[u8; 1]>,
    weight: u64,
    quantity: u64,
}

impl Asks {
    fn turn(&self) -> Turn<'_> {
        let caller = self.caller.as_ref().map_or(&b""[..], |caller| caller);
        Turn { leave: self.leave, caller, weight: self.weight, quantity: self.quantity }
    }

    fn length(&self) -> Fraction {
        Fraction::new(self.quantity.into(), self.weight.into())
    }
}

/// A call of a caller that asks for 1, with a weight of 1.
fn one(caller: u8) -> Asks {
    Asks { leave: 0, caller: Some([caller]), weight: 1, quantity: 1 }
}

/// A call without BY that asks for 1.
const NOBODY: Asks = Asks { leave: 0, caller: None, weight: 1, quantity: 1 };

/// Lets a call wait.
fn join(lines: &mut Lines<Callers>, at: u8, asks: &Asks) -> Ticket {
    let ticket = lines.admit(MANY).unwrap();
    let new_waiter = NewWaiter {
        call: (),
        turn: asks.turn(),
        ids: Vec::new(),
        handle: (),
        deadline_us: None,
        wait_us: 1,
    };
    lines.join(ticket, key(&at), new_waiter, 0);
    ticket
}

fn turns(lines: &Lines<Callers>, at: u8) -> Turns {
    lines.line(key(&at)).map(|line| line.turns.clone()).unwrap_or_default()
}

/// Returns the tickets of a line, from its head on.
fn order(lines: &Lines<Callers>, at: u8) -> Vec<Ticket> {
    tickets(&turns(lines, at))
}

fn tickets(turns: &Turns) -> Vec<Ticket> {
    let mut places = Vec::new();
    for (leave, level) in &turns.levels {
        for caller in level.callers.values() {
            let mut tag = caller.start;
            for (ticket, call) in &caller.calls {
                tag = tag.saturating_add(call.gap);
                places.push(Place { leave: *leave, tag, ticket: *ticket });
                tag = tag.saturating_add(call.length);
            }
        }
    }
    places.sort();
    assert_eq!((places.len(), places.first()), (turns.len(), turns.head()));
    places.into_iter().map(|place| place.ticket).collect()
}

#[derive(Clone, Debug)]
struct ModelCall {
    ticket: Ticket,
    at: u8,
    asks: Asks,
    tag: Fraction,
}

/// A caller in a line.
type CallerAt = (u8, u64, Option<[u8; 1]>);

#[derive(Default)]
struct Model {
    lines: Lines<Callers>,
    calls: Vec<ModelCall>,
    virtual_times: BTreeMap<(u8, u64), Fraction>,
    ends: BTreeMap<CallerAt, Fraction>,
    /// What each caller was granted, divided by its weight.
    granted: BTreeMap<CallerAt, Fraction>,
    /// The largest quantity of each caller, divided by its weight.
    largest: BTreeMap<CallerAt, Fraction>,
    /// The callers of which a call has left unserved.
    fallen_back: BTreeSet<CallerAt>,
    /// For two callers of the same line and LEAVE that both wait, the difference of what they were granted at the beginning.
    both_wait: BTreeMap<(CallerAt, CallerAt), Fraction>,
}

#[derive(Clone, Debug)]
enum TurnEvent {
    Join {
        at: u8,
        asks: Asks,
    },
    /// The head of a line is granted.
    Grant {
        at: u8,
    },
    /// A call leaves its line unserved.
    Leave {
        which: usize,
        how: u8,
    },
    /// A call comes, and is granted if nobody stands before it.
    Pass {
        at: u8,
        asks: Asks,
    },
    /// A call that waits is granted past those in another line, if nobody there stands before it.
    PassWaiting {
        which: usize,
        at: u8,
        asks: Asks,
    },
    /// A call changes its line.
    Change {
        which: usize,
        at: u8,
        asks: Asks,
    },
}

fn event() -> impl Strategy<Value = TurnEvent> {
    let at = || 0..3u8;
    let which = any::<usize>;
    let asks = || {
        let caller = proptest::option::weighted(0.8, (b'a'..b'd').prop_map(|caller| [caller]));
        let weight = prop::sample::select(vec![1, 1, 2, 3, 7, 16, 1000]);
        let leave = prop::sample::select(vec![0, 0, 0, 5]);
        (leave, caller, weight, 1..10u64).prop_map(|(leave, caller, weight, quantity)| Asks {
            leave,
            caller,
            weight,
            quantity,
        })
    };
    prop_oneof![
        6 => (at(), asks()).prop_map(|(at, asks)| TurnEvent::Join { at, asks }),
        6 => at().prop_map(|at| TurnEvent::Grant { at }),
        1 => (which(), 0..4u8).prop_map(|(which, how)| TurnEvent::Leave { which, how }),
        2 => (at(), asks()).prop_map(|(at, asks)| TurnEvent::Pass { at, asks }),
        1 => (which(), at(), asks())
            .prop_map(|(which, at, asks)| TurnEvent::PassWaiting { which, at, asks }),
        1 => (which(), at(), asks())
            .prop_map(|(which, at, asks)| TurnEvent::Change { which, at, asks }),
    ]
}

impl Model {
    /// Returns the calls of a line, from its head on.
    fn line(&self, at: u8) -> Vec<ModelCall> {
        let mut line: Vec<_> = self.calls.iter().filter(|call| call.at == at).cloned().collect();
        line.sort_by_key(|call| (call.asks.leave, call.tag, call.ticket));
        line
    }

    fn pick(&self, which: usize) -> Option<ModelCall> {
        (!self.calls.is_empty()).then(|| self.calls[which % self.calls.len()].clone())
    }

    /// Returns the tag of a call that comes now, or that came with this ticket.
    fn tag(&self, at: u8, asks: &Asks, came: Option<Ticket>) -> Fraction {
        let is_later = |call: &&ModelCall| {
            (call.at, call.asks.leave, call.asks.caller) == (at, asks.leave, asks.caller)
                && came.is_some_and(|came| came < call.ticket)
        };
        if let Some(later) = self.calls.iter().filter(is_later).min_by_key(|call| call.ticket) {
            return later.tag;
        }
        let virtual_time = self.virtual_times.get(&(at, asks.leave)).copied().unwrap_or_default();
        let end = self.ends.get(&(at, asks.leave, asks.caller)).copied().unwrap_or_default();
        virtual_time.max(end)
    }

    fn is_preceded(&self, at: u8, asks: &Asks, came: Option<Ticket>) -> bool {
        let tag = self.tag(at, asks, came);
        self.line(at).first().is_some_and(|head| match came {
            Some(came) => (head.asks.leave, head.tag, head.ticket) < (asks.leave, tag, came),
            None => (head.asks.leave, head.tag) <= (asks.leave, tag),
        })
    }

    /// Gives a call its tag. The calls of its caller that came later move back.
    fn enter(&mut self, at: u8, asks: &Asks, came: Option<Ticket>) -> Fraction {
        let tag = self.tag(at, asks, came);
        let caller = (at, asks.leave, asks.caller);
        let mut end = tag;
        for call in &mut self.calls {
            if (call.at, call.asks.leave, call.asks.caller) == caller {
                if came.is_some_and(|came| came < call.ticket) {
                    call.tag += asks.length();
                }
                end = self.ends[&caller];
            }
        }
        self.ends.insert(caller, end + asks.length());
        let largest = self.largest.entry(caller).or_default();
        *largest = asks.length().max(*largest);
        tag
    }

    /// Grants a call that has this tag.
    fn grant(&mut self, at: u8, asks: &Asks, tag: Fraction) {
        self.virtual_times.insert((at, asks.leave), tag);
        *self.granted.entry((at, asks.leave, asks.caller)).or_default() += asks.length();
    }

    /// Removes a call, and lets a line without calls forget all.
    fn remove(&mut self, call: &ModelCall, is_granted: bool) {
        self.calls.retain(|other| other.ticket != call.ticket);
        let ModelCall { at, asks, tag, .. } = call.clone();
        if is_granted {
            self.grant(at, &asks, tag);
        } else {
            self.fallen_back.insert((at, asks.leave, asks.caller));
        }
        if self.line(at).is_empty() {
            self.virtual_times.retain(|(other, _), _| *other != at);
            self.ends.retain(|(other, ..), _| *other != at);
            self.fallen_back.retain(|(other, ..)| *other != at);
        }
    }

    fn happen(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Join { at, asks } => {
                let preceded = self.is_preceded(at, &asks, None);
                assert_eq!(self.lines.is_preceded(key(&at), &asks.turn(), None), preceded);
                let tag = self.enter(at, &asks, None);
                let ticket = join(&mut self.lines, at, &asks);
                self.calls.push(ModelCall { ticket, at, asks, tag });
            }
            TurnEvent::Grant { at } => {
                if let Some(head) = self.line(at).first() {
                    self.remove(head, true);
                    assert!(self.lines.end(head.ticket, (), true, 0).is_some());
                    assert!(self.lines.forget(head.ticket, 0).is_some());
                }
            }
            TurnEvent::Leave { which, how } => {
                let Some(call) = self.pick(which) else { return };
                self.remove(&call, false);
                match how {
                    0 => self.lines.withdraw(call.ticket, 0),
                    1 => assert!(self.lines.end(call.ticket, (), false, 0).is_some()),
                    2 => assert!(self.lines.take_reply(call.ticket, 0).is_some()),
                    _ => {}
                }
                assert!(self.lines.forget(call.ticket, 0).is_some());
            }
            TurnEvent::Pass { at, asks } => self.pass(at, &asks, None),
            TurnEvent::PassWaiting { which, at, asks } => {
                if let Some(call) = self.pick(which).filter(|call| call.at != at) {
                    self.pass(at, &asks, Some(call.ticket));
                }
            }
            TurnEvent::Change { which, at, asks } => {
                let Some(call) = self.pick(which) else { return };
                self.lines.change_line(call.ticket, key(&at), &asks.turn(), 1, 0);
                if call.at != at {
                    self.remove(&call, false);
                    let tag = self.enter(at, &asks, Some(call.ticket));
                    self.calls.push(ModelCall { at, asks, tag, ..call });
                }
            }
        }
        self.check();
    }

    fn pass(&mut self, at: u8, asks: &Asks, came: Option<Ticket>) {
        let preceded = self.is_preceded(at, asks, came);
        assert_eq!(self.lines.is_preceded(key(&at), &asks.turn(), came), preceded);
        if !preceded {
            self.lines.count_turn(key(&at), &asks.turn(), came);
            if !self.line(at).is_empty() {
                let tag = self.enter(at, asks, came);
                self.grant(at, asks, tag);
            }
        }
    }

    fn check(&mut self) {
        for at in 0..3 {
            let line: Vec<Ticket> = self.line(at).iter().map(|call| call.ticket).collect();
            assert_eq!(order(&self.lines, at), line, "line {at}");
            for call in self.line(at) {
                // It stands where it is asked about.
                let preceded = line[0] != call.ticket;
                let turn = call.asks.turn();
                assert_eq!(self.lines.is_preceded(key(&at), &turn, Some(call.ticket)), preceded);
            }
            self.check_memory(at);
        }
        self.check_fairness();
    }

    /// Checks that a line remembers the callers that have calls, and those whose end tag is above the virtual time.
    fn check_memory(&self, at: u8) {
        let turns = turns(&self.lines, at);
        let is_remembered = |(caller, end): (&CallerAt, &Fraction)| {
            let virtual_time = self.virtual_times.get(&(at, caller.1)).copied().unwrap_or_default();
            caller.0 == at && (*end > virtual_time || self.waits(*caller))
        };
        let names = |(leave, level): (&u64, &Level)| -> Vec<CallerAt> {
            let letter = |name: &[u8]| name.first().map(|letter| [*letter]);
            level.callers.keys().map(|name| (at, *leave, letter(name))).collect()
        };
        let remembered: BTreeSet<CallerAt> = turns.levels.iter().flat_map(names).collect();
        let expected =
            self.ends.iter().filter(|end| is_remembered(*end)).map(|(caller, _)| *caller);
        assert_eq!(remembered, expected.collect());
        assert_eq!(turns.named + turns.unnamed, remembered.len());
        let idle = remembered.iter().filter(|caller| !self.waits(**caller)).count();
        assert_eq!(turns.idle.len(), idle);
    }

    fn waits(&self, (at, leave, caller): CallerAt) -> bool {
        self.calls
            .iter()
            .any(|call| (call.at, call.asks.leave, call.asks.caller) == (at, leave, caller))
    }

    /// Checks the lemma.
    fn check_fairness(&mut self) {
        let callers: Vec<CallerAt> = self.largest.keys().copied().collect();
        for f in &callers {
            for g in callers.iter().filter(|g| (g.0, g.1) == (f.0, f.1) && *g > f) {
                let granted = |caller| self.granted.get(caller).copied().unwrap_or_default();
                let now = granted(f) - granted(g);
                if ![f, g]
                    .into_iter()
                    .all(|one| self.waits(*one) && !self.fallen_back.contains(one))
                {
                    self.both_wait.remove(&(*f, *g));
                    continue;
                }
                let before = *self.both_wait.entry((*f, *g)).or_insert(now);
                let difference = if now > before { now - before } else { before - now };
                assert!(difference <= self.largest[f] + self.largest[g], "{f:?} {g:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_turns_are_those_of_the_model(events in prop::collection::vec(event(), 1..120)) {
        let mut model = Model::default();
        for event in events {
            model.happen(event);
        }
    }
}

#[test]
fn a_thousand_calls_of_one_caller_delay_the_first_call_of_another_by_one() {
    for (many, other) in [(one(b'a'), one(b'b')), (NOBODY, one(b'b')), (one(b'a'), NOBODY)] {
        let mut lines = Lines::default();
        let calls: Vec<Ticket> = (0..1_000).map(|_| join(&mut lines, 0, &many)).collect();
        let second = join(&mut lines, 0, &other);
        assert_eq!(order(&lines, 0)[..3], [calls[0], second, calls[1]]);
        // And by one wherever the line has got to.
        lines.forget(second, 0);
        for call in &calls[..500] {
            lines.end(*call, (), true, 0);
        }
        let second = join(&mut lines, 0, &other);
        assert_eq!(order(&lines, 0)[..2], [second, calls[500]]);
    }
}

#[test]
fn a_line_remembers_as_many_names_as_calls_may_wait() {
    let mut lines = Lines::default();
    lines.admit(3).unwrap();
    let passing = |caller, quantity| Asks { quantity, ..one(caller) };
    // They go ahead of the last call, whose LEAVE is so large that it never gets a turn.
    let last = Asks { leave: 9, ..one(b'z') };
    join(&mut lines, 0, &last);
    lines.admit(3).unwrap();
    let mut pass = |asks: &Asks| {
        lines.count_turn(key(&0), &asks.turn(), None);
        let turns = turns(&lines, 0);
        assert!(turns.named <= 3);
        let level = turns.levels.get(&0).unwrap();
        level.callers.keys().map(|name| name.first().copied().unwrap_or(b'-')).collect::<Vec<u8>>()
    };
    assert_eq!(pass(&passing(b'a', 20)), *b"a");
    assert_eq!(pass(&NOBODY), *b"-a");
    assert_eq!(pass(&passing(b'b', 10)), *b"-ab");
    // `z` is the third name. The one with the smallest end tag is forgotten.
    assert_eq!(pass(&passing(b'c', 30)), *b"-ac");
    assert_eq!(pass(&passing(b'd', 9)), *b"-ac");
    assert_eq!(pass(&passing(b'd', 25)), *b"-cd");
}

#[test]
fn a_caller_that_has_calls_in_line_is_not_forgotten() {
    let mut lines = Lines::default();
    let first = [b'a', b'b', b'c'].map(|caller| join(&mut lines, 0, &one(caller)));
    // Fewer than the calls that wait already. There is room for one without a name.
    lines.admit(1);
    lines.count_turn(key(&0), &NOBODY.turn(), None);
    let Turns { named, unnamed, .. } = turns(&lines, 0);
    assert_eq!((named, unnamed), (3, 1));
    let second = [b'a', b'b', b'c'].map(|caller| join(&mut lines, 0, &one(caller)));
    assert_eq!(order(&lines, 0), [first, second].concat());
    lines.admit(1);
    for call in first.into_iter().chain(second).take(5) {
        lines.end(call, (), true, 0);
    }
    let Turns { named, unnamed, .. } = turns(&lines, 0);
    assert_eq!((named, unnamed), (1, 0));
}

/// Otherwise calls of ever different LEAVE would fill the memory.
#[test]
fn calls_without_a_name_are_remembered_in_as_many_levels_as_calls_may_wait() {
    let mut lines = Lines::default();
    join(&mut lines, 0, &Asks { leave: 1_000, ..NOBODY });
    lines.admit(3).unwrap();
    for leave in 0..1_000 {
        lines.count_turn(key(&0), &Asks { leave, ..NOBODY }.turn(), None);
        let turns = turns(&lines, 0);
        assert!(turns.unnamed <= 3 && turns.levels.len() <= 3 && turns.idle.len() <= 2);
    }
    assert_eq!(turns(&lines, 0).unnamed, 3);
}

#[test]
fn no_turn_is_counted_in_the_line_in_which_the_call_stands() {
    let mut lines = Lines::default();
    let [a, _] = [b'a', b'b'].map(|caller| join(&mut lines, 0, &one(caller)));
    let before = turns(&lines, 0);
    lines.count_turn(key(&0), &one(b'a').turn(), Some(a));
    assert_eq!(turns(&lines, 0), before);
}

#[test]
fn a_line_without_calls_remembers_nobody() {
    let mut lines = Lines::default();
    lines.admit(MANY).unwrap();
    // The line stays, because it has a write to make.
    lines.add_write(key(&0), (), 0);
    lines.count_turn(key(&0), &one(b'a').turn(), None);
    assert_eq!(turns(&lines, 0), Turns::default());
    let [a, b] = [b'a', b'b'].map(|caller| join(&mut lines, 0, &one(caller)));
    lines.end(a, (), true, 0);
    assert_ne!(turns(&lines, 0).levels, BTreeMap::new());
    lines.end(b, (), false, 0);
    assert_eq!((turns(&lines, 0), lines.line_count()), (Turns::default(), 1));
}

#[test]
fn calls_beyond_the_largest_tag_are_served_by_arrival() {
    let most = Asks { quantity: u64::MAX, ..one(b'a') };
    let mut turns = Turns::default();
    for number in 1..=4 {
        turns.enter(&most.turn(), Ticket(number));
        let caller = turns.levels.get_mut(&0).unwrap().callers.get_mut(&b"a"[..]).unwrap();
        caller.calls.values_mut().for_each(|call| call.length = u128::MAX - 1);
    }
    for number in 1..=4 {
        assert_eq!(tickets(&turns)[0], Ticket(number));
        turns.remove(0, b"a", Ticket(number), number % 2 == 0);
    }
}

/// Otherwise it would get more turns the more of its calls stood in other lines first.
#[test]
fn a_caller_gets_no_more_turns_when_its_calls_come_from_another_line() {
    let mut lines = Lines::default();
    let early = [0; 4].map(|_| join(&mut lines, 1, &one(b'a')));
    let a = join(&mut lines, 0, &one(b'a'));
    let b = [0; 4].map(|_| join(&mut lines, 0, &one(b'b')));
    for call in early {
        lines.change_line(call, key(&0), &one(b'a').turn(), 1, 0);
    }
    let in_turn = [early[0], b[0], early[1], b[1], early[2], b[2], early[3], b[3], a];
    assert_eq!(order(&lines, 0), in_turn);
}
