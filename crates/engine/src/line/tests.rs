//! Compares the lines with a slow and obvious model: a list of all waiting calls that is sorted and searched each time, and
//! a driver that does what the lines tell it, a few steps at a time.

use super::*;
use crate::properties::cases;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A waiting call, which asks for a quantity of what its key has.
#[derive(Clone, Debug, PartialEq)]
struct Wants {
    leave: u64,
    quantity: u64,
    id: Option<[u8; 1]>,
}

/// Neither copied nor cloned.
#[derive(Debug, PartialEq)]
struct Handle(Ticket);

#[derive(Clone, Copy, Debug, PartialEq)]
enum LineReply {
    Granted(u64),
    Denied,
}

#[derive(Debug, PartialEq)]
struct GiveBack(u64);

struct Test;

impl LineTypes for Test {
    type Call = Wants;
    type Handle = Handle;
    type Reply = LineReply;
    type Write = GiveBack;
}

/// A key: number of the database and name.
type At = (i32, u8);

/// The most calls that wait in the model, few enough to be reached.
const MAX_WAITERS: u64 = 6;

/// A key with a line.
const KEY: DbKey = DbKey { db: 0, name: b"k" };

#[derive(Clone, Debug)]
struct Waiting {
    ticket: Ticket,
    at: At,
    wants: Wants,
    deadline_us: Option<u64>,
}

struct LineWorld {
    lines: Lines<Test>,
    now_us: u64,
    /// The time at which the timer fires.
    timer_us: Option<u64>,
    /// The quantity that each key has.
    free: BTreeMap<At, u64>,
    waiting: Vec<Waiting>,
    /// The calls whose wait has ended, but which the server still knows.
    ended: Vec<(Ticket, At, LineReply)>,
    granted: u64,
    may_write: bool,
    /// The granted quantity that must still be given back, because the client never received the grant.
    given_back: u64,
}

#[derive(Clone, Debug)]
enum LineEvent {
    Join { at: At, wants: Wants, block_us: Option<u64> },
    Gone(usize),
    Unblock(usize),
    Forget { which: usize, untold: bool },
    Release { at: At, quantity: u64, wakes: bool },
    Pass { us: u64, steps: usize },
    MayWrite(bool),
    StepBack,
}

fn event() -> impl Strategy<Value = LineEvent> {
    let at = (0..2i32, 0..3u8);
    let wants = (0..3u64, 1..4u64, proptest::option::of(any::<[u8; 1]>()))
        .prop_map(|(leave, quantity, id)| Wants { leave, quantity, id });
    let block_us = proptest::option::of(1..400_000u64);
    prop_oneof![
        5 => (at.clone(), wants, block_us)
            .prop_map(|(at, wants, block_us)| LineEvent::Join { at, wants, block_us }),
        1 => any::<usize>().prop_map(LineEvent::Gone),
        1 => any::<usize>().prop_map(LineEvent::Unblock),
        2 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, untold)| LineEvent::Forget { which, untold }),
        4 => (at, 1..6u64, any::<bool>())
            .prop_map(|(at, quantity, wakes)| LineEvent::Release { at, quantity, wakes }),
        6 => (1..120_000u64, 1..20usize).prop_map(|(us, steps)| LineEvent::Pass { us, steps }),
        1 => any::<bool>().prop_map(LineEvent::MayWrite),
        1 => Just(LineEvent::StepBack),
    ]
}

impl LineWorld {
    fn new() -> LineWorld {
        LineWorld {
            lines: Lines::default(),
            now_us: 1_000_000,
            timer_us: None,
            free: BTreeMap::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
            granted: 0,
            may_write: true,
            given_back: 0,
        }
    }

    /// Returns all calls that wait on a key, in the order in which they must be served.
    fn line(&self, at: At) -> Vec<Waiting> {
        let mut line: Vec<_> = self.waiting.iter().filter(|one| one.at == at).cloned().collect();
        line.sort_by_key(|one| (one.wants.leave, one.ticket));
        line
    }

    fn happen(&mut self, event: LineEvent) {
        match event {
            LineEvent::Join { at, wants, block_us } => self.join(at, wants, block_us),
            LineEvent::Gone(which) => {
                if let Some(one) = self.pick(which) {
                    self.lines.withdraw(one.ticket, self.now_us);
                    self.waiting.retain(|other| other.ticket != one.ticket);
                    assert_eq!(self.lines.waiting_count(), self.waiting.len());
                    let forgotten = self.lines.forget(one.ticket, self.now_us).unwrap();
                    assert_eq!(forgotten.state, WaiterState::NoReply);
                }
            }
            LineEvent::Unblock(which) => {
                if let Some(one) = self.pick(which) {
                    let head = self.line(one.at)[0].ticket;
                    match self.lines.take_reply(one.ticket, self.now_us) {
                        Some(WaiterReply::Unblocked { call, was_head, .. }) => {
                            assert_eq!((call, was_head), (one.wants, head == one.ticket));
                        }
                        _ => panic!("it waits"),
                    }
                    assert!(self.lines.take_reply(one.ticket, self.now_us).is_none());
                    self.waiting.retain(|other| other.ticket != one.ticket);
                    assert!(self.lines.forget(one.ticket, self.now_us).is_some());
                }
            }
            LineEvent::Forget { which, untold } => self.forget(which, untold),
            LineEvent::Release { at, quantity, wakes } => {
                *self.free.entry(at).or_default() += quantity;
                if wakes {
                    self.command(at);
                }
            }
            LineEvent::Pass { us, steps } => self.pass(us, steps),
            LineEvent::MayWrite(may_write) => self.may_write = may_write,
            LineEvent::StepBack => {
                self.timer_us = None;
                self.lines.restart_timer(self.now_us);
            }
        }
        self.set_timer();
        self.check();
    }

    fn pick(&self, which: usize) -> Option<Waiting> {
        (!self.waiting.is_empty()).then(|| self.waiting[which % self.waiting.len()].clone())
    }

    fn join(&mut self, at: At, wants: Wants, block_us: Option<u64>) {
        let key = DbKey { db: at.0, name: &[at.1] };
        let same_id = |one: &Waiting| one.at == at && one.wants.id == wants.id;
        let is_waiting = wants.id.is_some() && self.waiting.iter().any(same_id);
        if let Some(id) = wants.id {
            assert_eq!(self.lines.is_id_claimed(key, &id), is_waiting);
        }
        let is_barred = self.line(at).iter().any(|one| one.wants.leave <= wants.leave);
        assert_eq!(self.lines.is_barred(key, wants.leave), is_barred);
        let has_enough = self.free.get(&at).is_some_and(|free| *free >= wants.quantity);
        if is_waiting || !is_barred && has_enough {
            return;
        }
        let Some(ticket) = self.lines.admit(MAX_WAITERS) else {
            assert_eq!(self.waiting.len() as u64, MAX_WAITERS);
            return;
        };
        assert!((self.waiting.len() as u64) < MAX_WAITERS);
        assert_eq!(Ticket::from_number(ticket.number()), ticket);
        assert!(ticket.number() > 0 && self.waiting.iter().all(|one| one.ticket < ticket));
        let deadline_us = block_us.map(|us| self.now_us + us);
        let ids = wants.id.iter().map(|id| (key, &id[..])).collect();
        let joins = NewWaiter { ids, ..new_waiter(wants.clone(), ticket, deadline_us) };
        self.lines.join(ticket, key, joins, self.now_us);
        self.waiting.push(Waiting { ticket, at, wants, deadline_us });
    }

    fn forget(&mut self, which: usize, untold: bool) {
        if self.ended.is_empty() {
            return;
        }
        let (ticket, at, reply) = self.ended.remove(which % self.ended.len());
        if !untold {
            let answer = self.lines.take_reply(ticket, self.now_us);
            assert!(
                matches!(answer, Some(WaiterReply::Ended { reply: wakes, .. }) if wakes == reply)
            );
        }
        let forgotten = self.lines.forget(ticket, self.now_us).unwrap();
        let state =
            if untold { WaiterState::HasReply(reply) } else { WaiterState::Answered(Some(reply)) };
        assert_eq!(forgotten.state, state);
        assert_eq!((forgotten.key.db, forgotten.key.name[0]), at);
        if let (LineReply::Granted(quantity), true) = (reply, untold) {
            self.lines.add_write(forgotten.key.borrowed(), GiveBack(quantity), self.now_us);
            self.granted -= quantity;
            self.given_back += quantity;
        }
    }

    /// Makes a command on a key, which tries the head of its line and those behind it.
    fn command(&mut self, at: At) {
        self.lines.begin_work(WorkCause::Command, 0, self.now_us, self.now_us);
        let woken = self.lines.make_head_due(DbKey { db: at.0, name: &[at.1] }, self.now_us);
        assert_eq!(woken.is_some(), !self.line(at).is_empty());
        while let Some((ticket, call)) = woken.and_then(|line| self.lines.head(line)) {
            if !self.may_write || !self.try_head(woken.unwrap(), ticket, &call, false) {
                break;
            }
        }
        self.lines.end_work(self.now_us);
    }

    /// Lets time pass. The timer fires when it is due, each time for a few steps.
    fn pass(&mut self, us: u64, steps: usize) {
        let until_us = self.now_us + us;
        let mut firings = 0;
        while let Some(timer_us) = self.timer_us.filter(|timer_us| *timer_us <= until_us) {
            self.now_us = timer_us.max(self.now_us);
            self.timer_us = None;
            self.fire(steps);
            self.set_timer();
            firings += 1;
            assert!(firings < 1_000, "it fires without an end");
        }
        self.now_us = until_us;
    }

    fn fire(&mut self, steps: usize) {
        self.lines.begin_work(WorkCause::Timer, 0, self.now_us, self.now_us);
        if !self.may_write {
            self.lines.pause(self.now_us);
        }
        let mut left = steps;
        while let Some((line, key)) = self.lines.next_line(self.now_us).filter(|_| left > 0) {
            let at = (key.db, key.name[0]);
            for _ in 0..3 {
                let Some(step) = self.lines.next_step(line, self.may_write, self.now_us) else {
                    break;
                };
                self.carry_out(line, at, step);
                left = left.saturating_sub(1);
            }
            self.lines.move_to_back(line, self.now_us);
            // Each reading of the real clock is later than the one before.
            self.now_us += 2;
        }
        self.lines.end_work(self.now_us);
    }

    fn carry_out(&mut self, line: LineId, at: At, step: LineStep<Test>) {
        match step {
            LineStep::Write(GiveBack(quantity)) => {
                assert!(self.may_write);
                self.given_back -= quantity;
                *self.free.entry(at).or_default() += quantity;
            }
            LineStep::Try { ticket, call, is_overdue } => {
                assert!(self.may_write);
                self.try_head(line, ticket, &call, is_overdue);
            }
            LineStep::Dismiss { ticket, call } => {
                let line = self.line(at);
                let one = line.iter().find(|one| one.ticket == ticket).unwrap();
                assert_eq!(one.wants, call);
                assert!(one.deadline_us.is_some_and(|due_us| due_us <= self.now_us));
                // A call whose time is up still gets what is there at that time.
                let fits = self.free.get(&at).is_some_and(|free| *free >= line[0].wants.quantity);
                assert!(!self.may_write || line[0].ticket != ticket || !fits);
                self.end(ticket, at, LineReply::Denied);
            }
        }
    }

    /// Tries the head. Returns whether its wait is over.
    fn try_head(&mut self, line: LineId, ticket: Ticket, call: &Wants, is_overdue: bool) -> bool {
        let one = self.waiting.iter().find(|one| one.ticket == ticket).unwrap().clone();
        assert_eq!(self.line(one.at)[0].ticket, ticket, "only the head is tried");
        assert_eq!(one.wants, *call);
        let due = one.deadline_us.is_some_and(|due_us| due_us <= self.now_us);
        assert!(!is_overdue || due);
        let free = self.free.entry(one.at).or_default();
        if *free >= call.quantity {
            *free -= call.quantity;
            self.granted += call.quantity;
            self.end(ticket, one.at, LineReply::Granted(call.quantity));
        } else if is_overdue {
            self.end(ticket, one.at, LineReply::Denied);
        } else {
            self.lines.retry_head_after(line, POLL_US, self.now_us);
            return false;
        }
        true
    }

    fn end(&mut self, ticket: Ticket, at: At, reply: LineReply) {
        let granted = reply != LineReply::Denied;
        let handle = self.lines.end(ticket, reply, granted, self.now_us);
        assert_eq!(handle, Some(Handle(ticket)));
        assert_eq!(self.lines.end(ticket, reply, granted, self.now_us), None, "ended once");
        self.waiting.retain(|one| one.ticket != ticket);
        self.ended.push((ticket, at, reply));
    }

    fn set_timer(&mut self) {
        match self.lines.update_timer(self.now_us) {
            TimerChange::Keep => {}
            TimerChange::Stop => {
                assert!(self.timer_us.take().is_some());
            }
            TimerChange::Start { after_us } => self.timer_us = Some(self.now_us + after_us),
        }
        assert_eq!(self.lines.update_timer(self.now_us), TimerChange::Keep);
    }

    fn check(&self) {
        assert_eq!(self.lines.waiting_count(), self.waiting.len());
        assert_eq!(self.lines.oldest_since_us().is_some(), !self.waiting.is_empty());
        for one in &self.waiting {
            let key = DbKey { db: one.at.0, name: &[one.at.1] };
            assert_eq!(self.lines.waiting_on(key), self.line(one.at).len());
        }
        let works = !self.waiting.is_empty() || self.given_back > 0;
        assert_eq!(self.timer_us.is_some(), works, "a timer runs as long as there is work");
        assert_eq!(self.lines.line_count() > 0, works);
        let due_us = self.waiting.iter().filter_map(|one| one.deadline_us).min();
        let latest_us = due_us.unwrap_or(u64::MAX).min(self.now_us + POLL_US);
        assert!(!works || self.timer_us.unwrap() <= latest_us.max(self.now_us) + 1_000);
    }

    /// Checks that after some time without events no call waits for what its key has.
    fn settle(&mut self) {
        self.may_write = true;
        self.pass(500_000, 1_000);
        self.set_timer();
        self.check();
        for one in &self.waiting {
            assert!(one.deadline_us.is_none_or(|due_us| due_us + 1_000 > self.now_us), "{one:?}");
            let head = self.line(one.at).remove(0);
            assert!(self.free.get(&one.at).is_none_or(|free| *free < head.wants.quantity));
        }
        assert_eq!(self.given_back, 0);
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn the_lines_do_what_the_model_does(events in prop::collection::vec(event(), 1..80)) {
        let mut world = LineWorld::new();
        for event in events {
            world.happen(event);
        }
        world.settle();
    }
}

fn new_waiter(wants: Wants, ticket: Ticket, deadline_us: Option<u64>) -> NewWaiter<'static, Test> {
    let turn = Turn { leave: wants.leave, caller: b"", weight: 1, quantity: wants.quantity };
    let handle = Handle(ticket);
    NewWaiter { call: wants, turn, ids: Vec::new(), handle, deadline_us, wait_us: POLL_US }
}

/// Lets a call wait for 1 on a key that has nothing.
fn join(lines: &mut Lines<Test>, key: DbKey, deadline_us: Option<u64>) {
    let ticket = lines.admit(u64::MAX).unwrap();
    let wants = Wants { leave: 0, quantity: 1, id: None };
    lines.join(ticket, key, new_waiter(wants, ticket, deadline_us), 0);
}

/// Returns the line of a call that waits without an end.
fn line_of_one() -> Lines<Test> {
    let mut lines = Lines::default();
    join(&mut lines, KEY, None);
    lines
}

#[test]
fn commands_of_one_iteration_share_a_budget_and_the_timer_brings_a_new_one() {
    let mut lines = line_of_one();
    lines.begin_work(WorkCause::Command, 0, 0, 100);
    assert!(lines.has_time(100) && lines.has_time(100 + BUDGET_US - 1));
    assert!(!lines.has_time(100 + BUDGET_US));
    assert_eq!(lines.end_work(100 + BUDGET_US), BUDGET_US);
    lines.begin_work(WorkCause::Command, 0, 0, 200 + BUDGET_US);
    assert!(!lines.has_time(200 + BUDGET_US), "all commands share one budget");
    lines.end_work(200 + BUDGET_US);
    lines.begin_work(WorkCause::Command, 1, 0, 300 + BUDGET_US);
    assert!(lines.has_time(300 + BUDGET_US), "the next iteration of the event loop has its own");
    lines.end_work(300 + 2 * BUDGET_US);
    lines.begin_work(WorkCause::Timer, 0, 0, 3_000);
    assert!(lines.has_time(3_000) && !lines.has_time(3_000 + BUDGET_US));
    lines.end_work(3_000 + BUDGET_US);
    lines.begin_work(WorkCause::Command, 0, 0, 5_000);
    assert!(lines.has_time(5_000));
}

#[test]
fn the_timer_fires_at_once_for_a_head_that_is_due_and_rests_as_long_as_it_has_worked() {
    let mut lines = line_of_one();
    assert_eq!(lines.update_timer(100), TimerChange::Start { after_us: POLL_US - 100 });
    lines.make_head_due(KEY, 100);
    assert_eq!(lines.update_timer(100), TimerChange::Start { after_us: 0 });
    lines.begin_work(WorkCause::Timer, 0, 0, 100);
    assert_eq!(lines.update_timer(100), TimerChange::Keep, "it is set when the work ends");
    lines.end_work(2_100);
    assert_eq!(lines.update_timer(2_100), TimerChange::Start { after_us: 2_000 });
}

#[test]
fn lines_take_turns() {
    let mut lines: Lines<Test> = Lines::default();
    for key in [b"a", b"b", b"a", b"b"] {
        join(&mut lines, DbKey { db: 0, name: key }, Some(50));
    }
    let mut visited = Vec::new();
    for now_us in 100..104 {
        let (line, key) = lines.next_line(now_us).unwrap();
        visited.push(key.name[0]);
        let Some(LineStep::Try { ticket, is_overdue, .. }) = lines.next_step(line, true, now_us)
        else {
            panic!("the head is tried first");
        };
        assert!(is_overdue);
        lines.end(ticket, LineReply::Denied, false, now_us);
        lines.move_to_back(line, now_us);
    }
    assert_eq!(visited, *b"abab");
    assert!(lines.next_line(u64::MAX).is_none());
}

#[test]
fn lines_that_are_moved_back_at_one_moment_come_in_that_order() {
    let mut lines: Lines<Test> = Lines::default();
    let [a, b] = [b"a", b"b"].map(|key| {
        let key = DbKey { db: 0, name: key };
        join(&mut lines, key, None);
        lines.make_head_due(key, 0).unwrap()
    });
    for (first, second) in [(b, a), (a, b)] {
        lines.move_to_back(first, 10);
        lines.move_to_back(second, 10);
        assert_eq!(lines.next_line(100).unwrap().0, first);
    }
}

#[test]
fn a_wall_clock_that_is_set_forward_makes_all_heads_due() {
    let mut lines = line_of_one();
    lines.begin_work(WorkCause::Timer, 0, 1_000_000, 10);
    lines.end_work(10);
    let line = lines.make_head_due(KEY, 10).unwrap();
    lines.retry_head_after(line, POLL_US, 10);
    // Clocks are read one after the other, so a small difference is not a step.
    lines.begin_work(WorkCause::Timer, 0, 1_000_100 + STEP_US, 110);
    assert!(lines.next_line(110).is_none());
    lines.end_work(110);
    lines.begin_work(WorkCause::Timer, 0, 1_000_201 + 2 * STEP_US, 210);
    assert!(lines.next_line(210).is_some());
    lines.end_work(210);
}

#[test]
fn a_head_is_tried_when_its_denial_said_so_or_the_next_poll_is_due() {
    let mut lines: Lines<Test> = Lines::default();
    let mut join = |leave, wait_us, now_us| {
        let ticket = lines.admit(u64::MAX).unwrap();
        let wants = Wants { leave, quantity: 1, id: None };
        let joins = NewWaiter { wait_us, ..new_waiter(wants, ticket, None) };
        lines.join(ticket, KEY, joins, now_us);
        (ticket, lines.due_us())
    };
    assert_eq!(join(5, 7_000, 0).1, Some(7_000));
    // A call behind the head changes nothing, and a new head has its own time.
    let (behind, due_us) = join(9, 1_000, 0);
    assert_eq!(due_us, Some(7_000));
    let (head, due_us) = join(0, u64::MAX, 100);
    assert_eq!(due_us, Some(POLL_US), "at a multiple of a millisecond");
    // The same holds when a waiter leaves.
    lines.withdraw(behind, 200);
    assert_eq!(lines.due_us(), Some(POLL_US));
    lines.withdraw(head, 300);
    assert_eq!(lines.due_us(), Some(300));
}

/// Otherwise the timer would visit the line again and again until the key can be written.
#[test]
fn a_postponed_line_is_left_alone_even_if_the_time_of_a_waiter_is_up() {
    let mut lines = Lines::default();
    join(&mut lines, KEY, Some(50));
    let (line, _) = lines.next_line(50).unwrap();
    lines.postpone(line, 50);
    lines.move_to_back(line, 51);
    assert_eq!(lines.due_us(), Some(50 + PAUSE_US));
}

#[test]
fn writes_are_dropped_where_another_server_owns_the_key() {
    let other = DbKey { name: b"l", ..KEY };
    for all in [false, true] {
        let mut lines = line_of_one();
        lines.add_write(KEY, GiveBack(1), 0);
        lines.add_write(other, GiveBack(2), 0);
        assert_eq!(lines.line_count(), 2);
        match all {
            true => lines.drop_all_writes(),
            false => lines.drop_writes(lines.line_id(other).unwrap()),
        }
        // The line that has a waiter stays.
        assert_eq!((lines.line_count(), lines.waiting_on(KEY)), (1, 1));
        let line = lines.make_head_due(KEY, 0).unwrap();
        let step = lines.next_step(line, true, 0);
        assert_eq!(matches!(step, Some(LineStep::Write(GiveBack(1)))), !all);
    }
}

#[test]
fn a_head_that_was_tried_when_another_wait_ended_is_not_tried_again() {
    let mut lines = line_of_one();
    join(&mut lines, KEY, Some(50));
    let line = lines.make_head_due(KEY, 0).unwrap();
    for (denied_us, dismisses) in [(49, false), (50, true)] {
        lines.retry_head_after(line, POLL_US, denied_us);
        let step = lines.next_step(line, true, 50);
        assert_eq!(matches!(step, Some(LineStep::Dismiss { .. })), dismisses, "{denied_us}");
    }
}

#[test]
fn an_overdue_head_is_tried_even_if_a_command_has_tried_it_since() {
    let mut lines = Lines::default();
    join(&mut lines, KEY, Some(50));
    let line = lines.make_head_due(KEY, 0).unwrap();
    lines.retry_head_after(line, POLL_US, 55);
    let step = lines.next_step(line, true, 60);
    assert!(matches!(step, Some(LineStep::Try { is_overdue: true, .. })));
}

#[test]
fn a_deadline_is_the_length_of_block_after_the_start_and_0_is_none() {
    for (block_ms, end_us) in [(0, None), (1, Some(1_007)), (u64::MAX, Some(u64::MAX))] {
        assert_eq!(deadline_us(7, block_ms), end_us);
    }
}

const OTHER: DbKey = DbKey { db: 1, name: b"l" };

/// Lets a call wait that claims ids on two keys.
fn join_with_ids(lines: &mut Lines<Test>) -> Ticket {
    let ticket = lines.admit(u64::MAX).unwrap();
    let wants = Wants { leave: 0, quantity: 1, id: None };
    let ids = vec![(KEY, &b"a"[..]), (OTHER, b"a"), (OTHER, b"b")];
    lines.join(ticket, KEY, NewWaiter { ids, ..new_waiter(wants, ticket, None) }, 0);
    ticket
}

#[test]
fn ids_are_claimed_on_each_of_their_keys_until_the_wait_is_over() {
    let is_claimed = |lines: &Lines<Test>| {
        let claims = [(KEY, b"a"), (OTHER, b"a"), (OTHER, b"b"), (KEY, b"b")];
        claims.map(|(key, id)| lines.is_id_claimed(key, id))
    };
    let endings: [fn(&mut Lines<Test>, Ticket); 5] = [
        |lines, ticket| assert!(lines.end(ticket, LineReply::Granted(1), true, 0).is_some()),
        |lines, ticket| assert!(lines.end(ticket, LineReply::Denied, false, 0).is_some()),
        |lines, ticket| lines.withdraw(ticket, 0),
        |lines, ticket| assert!(lines.take_reply(ticket, 0).is_some()),
        |lines, ticket| assert!(lines.forget(ticket, 0).is_some()),
    ];
    let turn = Turn { leave: 0, caller: b"", weight: 1, quantity: 1 };
    for changes_line in [false, true] {
        for end in endings {
            let mut lines = Lines::default();
            let ticket = join_with_ids(&mut lines);
            if changes_line {
                lines.change_line(ticket, OTHER, &turn, POLL_US, 0);
            }
            assert_eq!(is_claimed(&lines), [true, true, true, false]);
            end(&mut lines, ticket);
            assert_eq!(is_claimed(&lines), [false; 4]);
            assert_eq!(lines.claimed_ids, ClaimedIds::default());
            // Another call claims them, and they stay its own when the first one is forgotten.
            join_with_ids(&mut lines);
            lines.forget(ticket, 0);
            assert_eq!(is_claimed(&lines), [true, true, true, false]);
        }
    }
}

#[test]
fn a_call_that_changes_its_line_leaves_no_trace_in_the_old_one() {
    let turn = Turn { leave: 0, caller: b"", weight: 1, quantity: 1 };
    let mut lines = Lines::default();
    for deadline_us in [50, 70] {
        join(&mut lines, KEY, Some(deadline_us));
    }
    join(&mut lines, OTHER, None);
    let [first, second, third] = [1, 3, 4].map(Ticket);
    let old = lines.line_id(KEY).unwrap();
    lines.retry_head_after(old, POLL_US, 5);
    // It came before the other call. The next head of its old line is due.
    lines.change_line(first, OTHER, &turn, 20, 10);
    assert_eq!(lines.due_us(), Some(10));
    assert_eq!(lines.head(old).unwrap().0, second);
    lines.retry_head_after(old, POLL_US, 10);
    let new = lines.line_id(OTHER).unwrap();
    assert_eq!(lines.head(new).unwrap().0, first);
    assert_eq!(lines.due_us(), Some(30), "it is tried when its denial said so");
    lines.retry_head_after(new, POLL_US, 30);
    assert_eq!(lines.due_us(), Some(50), "its deadline is the same");
    assert_eq!((lines.waiting_count(), lines.waiting_on(KEY), lines.waiting_on(OTHER)), (3, 1, 2));
    // One that is not the head changes nothing for the heads.
    lines.change_line(third, KEY, &turn, 1, 40);
    assert_eq!(lines.head(old).unwrap().0, second);
    assert_eq!(lines.due_us(), Some(50));
    // The last one takes the line with it.
    lines.change_line(first, KEY, &turn, 1, 45);
    assert_eq!((lines.line_count(), lines.waiting_on(KEY)), (1, 3));
    assert!(
        matches!(lines.take_reply(first, 45), Some(WaiterReply::Unblocked { key, was_head: true, .. }) if key.borrowed() == KEY)
    );
}

#[test]
fn a_call_does_not_change_to_its_own_line_or_once_its_wait_is_over() {
    let turn = Turn { leave: 0, caller: b"", weight: 1, quantity: 1 };
    let mut lines = line_of_one();
    join(&mut lines, KEY, None);
    let ticket = Ticket(1);
    let line = lines.line_id(KEY).unwrap();
    lines.change_line(ticket, KEY, &turn, 1, 0);
    assert_eq!(lines.head(line).unwrap().0, ticket);
    lines.withdraw(ticket, 0);
    lines.change_line(ticket, OTHER, &turn, 1, 0);
    assert_eq!((lines.line_count(), lines.waiting_count()), (1, 1));
}
