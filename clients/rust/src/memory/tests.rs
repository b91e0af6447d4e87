use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use support::{seeds, Random};

use super::*;
use crate::attempt::poll_once;
use crate::calls::{CallKind, LimitCall};
use crate::limit::Take;
use crate::options::Options;
use crate::{Clause, Period, Rate, Semaphore, Window};

/// Returns a clock in milliseconds, and a limiter that uses it.
fn held(builder: MemoryLimiterBuilder) -> (Arc<AtomicU64>, MemoryLimiter) {
    let ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let clock = Arc::clone(&ms);
    let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Relaxed));
    (ms, builder.clock(now).build())
}

/// Waits until this many calls wait for a key.
async fn until_waiting(limiter: &Limiter, key: &str, calls: u64) {
    let waiting = async || limiter.info(key).await.unwrap().map_or(0, |info| info.waiting);
    let reached = async {
        while waiting().await != calls {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap();
}

#[tokio::test]
async fn a_call_in_line_is_granted_when_another_gives_back() {
    let (_, limiter) = held(MemoryLimiter::builder());
    let jobs = Semaphore::new(1);
    let mut permit = limiter.acquire("jobs", &jobs).await.unwrap();
    let call = limiter.acquire("jobs", &jobs).block(Duration::from_secs(60));
    let waiting = tokio::spawn(call.into_future());
    until_waiting(&limiter, "jobs", 1).await;
    permit.release().await.unwrap();
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_call_in_line_is_granted_when_its_time_has_come() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let rate = Rate::per("1/min").unwrap();
    limiter.take("mail", &rate).await.unwrap();
    // A call that cannot be allowed in time is denied at once.
    assert!(!limiter.take("mail", &rate).block(Duration::from_secs(5)).await.unwrap().is_allowed());
    let call = limiter.take("mail", &rate).block(Duration::from_secs(90));
    let waiting = tokio::spawn(call.into_future());
    until_waiting(&limiter, "mail", 1).await;
    ms.fetch_add(60_000, Relaxed);
    assert!(waiting.await.unwrap().unwrap().is_allowed());
}

#[tokio::test]
async fn what_waits_and_is_dropped_leaves_the_line_and_gives_back_what_it_was_granted() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let rate = Rate::per("1/min").unwrap();
    limiter.take("mail", &rate).await.unwrap();
    let call =
        || Box::pin(limiter.take("mail", &rate).block(Duration::from_secs(90)).into_future());
    let mut waiting = call();
    assert!(poll_once(waiting.as_mut()).await.is_none());
    until_waiting(&limiter, "mail", 1).await;
    drop(waiting);
    until_waiting(&limiter, "mail", 0).await;
    assert_eq!(limiter.look("mail", &rate).await.unwrap().remaining, 0);
    let mut waiting = call();
    assert!(poll_once(waiting.as_mut()).await.is_none());
    ms.fetch_add(60_000, Relaxed);
    // Another call that sees the time grants it.
    assert_eq!(limiter.take("mail", &rate).await.unwrap().remaining, 0);
    drop(waiting);
    let given_back = async {
        while limiter.look("mail", &rate).await.unwrap().remaining == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), given_back).await.unwrap();
}

/// It panics like the future of an `async` function, with any limiter.
#[tokio::test]
#[should_panic(expected = "resumed after completion")]
async fn an_answer_that_was_returned_cannot_be_polled_again() {
    let mut answer = MemoryLimiter::new().take("k", &Rate::per("1/s").unwrap()).into_future();
    assert!((&mut answer).await.unwrap().is_allowed());
    let _ = answer.await;
}

#[tokio::test]
async fn a_limit_with_a_ban_is_refused_by_calls_that_cannot_ban() {
    let (limiter, second) = (MemoryLimiter::new(), Duration::from_secs(1));
    let rate = Rate::per("5/s").unwrap().ban(second);
    let window = Window::per("5/s").unwrap().ban(second);
    let take = || limiter.take("k", &window);
    let clause = || Clause::take("k", &window);
    let results = [
        take().quantity(0).await.map(drop),
        take().quantity(-1).await.map(drop),
        take().at_most().await.map(drop),
        take().force().await.map(drop),
        take().block(second).await.map(drop),
        limiter.take("r", &rate).ahead(second).await.map(drop),
        limiter.acquire("k", &window).await.map(drop),
        limiter.all([clause().check()]).await.map(drop),
        limiter.all([clause().quantity(0)]).await.map(drop),
        limiter.all([clause()]).force().await.map(drop),
        limiter.acquire_all([Clause::acquire("k", &window)]).await.map(drop),
        limiter.local("k", &window).build().map(drop),
    ];
    for (at, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{at}: {result:?}");
    }
    assert!(limiter.look("k", &window).quantity(0).await.unwrap().is_allowed());
    assert!(take().count_denied().await.unwrap().is_allowed());
}

#[test]
fn settings_that_the_server_would_refuse_are_refused() {
    for (name, value) in
        [("policies", "free WINDOW x 1d"), ("timezone", "Moon"), ("maxmemory", "1")]
    {
        let refused = MemoryLimiter::builder().setting(name, value).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused:?}");
    }
    for (part, whole) in [(0, 4), (5, 4), (1, 0)] {
        assert!(MemoryLimiter::builder().share(part, whole).is_err());
    }
}

/// Two limiters with the same clock: one decides without words where it can, the other is sent commands.
struct Pair {
    us: Arc<AtomicU64>,
    typed: MemoryLimiter,
    words: MemoryLimiter,
    random: Random,
}

impl Pair {
    fn new(seed: u64, builder: impl Fn() -> MemoryLimiterBuilder) -> Pair {
        let us = Arc::new(AtomicU64::new(1_800_000_000_000_000));
        let made = || {
            let clock = Arc::clone(&us);
            let now = move || UNIX_EPOCH + Duration::from_micros(clock.load(Relaxed));
            builder().clock(now).build()
        };
        let (typed, words) = (made(), made());
        Pair { us, typed, words, random: Random::new(seed) }
    }

    fn number(&mut self) -> u64 {
        let numbers = [0, 1, 2, 3, 5, 9, 4097, i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX];
        let at = if self.random.one_in(8) { numbers.len() as i64 } else { 6 };
        numbers[self.random.below(at) as usize]
    }

    fn period(&mut self) -> Period {
        let usual = self.random.pick(&["1s", "1s", "3s", "500ms", "1min", "1mo", "1d", "2h"]);
        let strange = self.random.pick(&["0", "7d", "1y", "101y", "1300mo", "9223372036854775807"]);
        (if self.random.one_in(10) { strange } else { usual }).parse().unwrap()
    }

    fn rate(&mut self) -> Rate {
        if self.random.one_in(9) {
            return Rate::policy(self.random.pick(&["rate", "shadow", "window", "none"]));
        }
        let rate = Rate::new(self.number(), self.number(), self.period());
        let ban = Duration::from_millis(self.random.pick(&[0, 700]));
        if self.random.one_in(9) {
            rate.ban(ban)
        } else {
            rate
        }
    }

    fn window(&mut self) -> Window {
        if self.random.one_in(9) {
            return Window::policy(self.random.pick(&["window", "quiet", "rate", "none"]));
        }
        let window = Window::new(self.number(), self.period());
        match self.random.below(12) {
            0 => window.buckets(self.random.pick(&[0, 1, 4, 65_536, 65_537])),
            1 | 2 => window.fixed(),
            3 => window.fixed().start(self.random.pick(&["first", "09:00", "sun", "02-30", "x"])),
            4 => window.fixed().tz(self.random.pick(&["Asia/Tokyo", "Moon"])),
            5 => window.fixed().start("first").tz("UTC"),
            6 => window.ban(Duration::from_millis(700)),
            _ => window,
        }
    }

    fn quantity(&mut self) -> i64 {
        self.random.pick(&[1, 1, 1, 1, 2, 3, 0, -1, -2, 4000, i64::MAX, i64::MIN])
    }

    fn leave(&mut self) -> u64 {
        if self.random.one_in(4) {
            self.number()
        } else {
            0
        }
    }

    /// Makes the same call of both. Returns whether the first decides it without words.
    async fn call<L: Take>(&mut self, limit: &L, only_looks: bool) -> bool {
        let is_rate = (limit.to_any().taking_command() == "RL.THROTTLE") != self.random.one_in(9);
        let key: &[u8] = if is_rate { b"b" } else { b"a" };
        let (quantity, leave) = (self.quantity(), self.leave());
        let option = if only_looks { 9 } else { self.random.below(40) };
        let options =
            Options { leave, at_most: option == 0, force: option == 1, ..Options::default() };
        let limiter: &Limiter = &self.words;
        let kind = if only_looks { CallKind::Look } else { CallKind::Take };
        let asked = LimitCall { limiter, kind, key, limit: limit.to_any(), quantity, options };
        let is_typed = self.words.core().memory.clone().unwrap().answer(&asked).is_some();
        let found = if only_looks {
            self.typed.look(key, limit).quantity(quantity).leave(leave).await
        } else {
            let call = self.typed.take(key, limit).quantity(quantity).leave(leave);
            match option {
                0 => call.at_most().await,
                1 => call.force().await,
                _ => call.await,
            }
        };
        let request = asked.request();
        let command = request.commands[0].clone();
        if let Err(error) = asked.check() {
            assert_eq!(format!("{found:?}"), format!("{:?}", Err::<Reply, _>(error)));
            return is_typed;
        }
        let expected = match self.words.core().send(request).await {
            Ok(crate::core::Outcome::Replies(values, _)) => {
                crate::calls::read(&values[0], kind, &asked.options)
            }
            Ok(_) => panic!("{command} is not decided in the process"),
            Err(error) => Err(error),
        };
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{command}");
        is_typed
    }

    async fn assert_same(&self) {
        for key in ["a", "b"] {
            let [typed, words] = [&self.typed, &self.words].map(|limiter| limiter.info(key));
            assert_eq!(format!("{:?}", typed.await), format!("{:?}", words.await));
        }
        let [typed, words] = [&self.typed, &self.words].map(|limiter| limiter.top(9));
        assert_eq!(typed.await.unwrap(), words.await.unwrap());
        let [typed, words] = [&self.typed, &self.words].map(|limiter| limiter.policies());
        assert_eq!(typed.await.unwrap(), words.await.unwrap());
    }
}

#[tokio::test]
async fn a_call_without_words_is_decided_as_its_command_is() {
    let policies = support::RandomCalls::POLICIES;
    let builders: [&dyn Fn() -> MemoryLimiterBuilder; 3] = [
        &|| MemoryLimiter::builder().policies(policies).unwrap(),
        &|| {
            let builder = MemoryLimiter::builder().share(1, 3).unwrap();
            builder.setting("window-entries", "3").unwrap().policies(policies).unwrap()
        },
        &|| MemoryLimiter::builder().setting("policies-only", "yes").unwrap(),
    ];
    let mut typed = 0;
    for (seed, builder) in seeds(1..5).into_iter().flat_map(|seed| builders.map(|b| (seed, b))) {
        let mut pair = Pair::new(seed, builder);
        let window = Window::per("3/s").unwrap();
        // Calls that stand in line until they are dropped.
        let mut waiting = Vec::new();
        for _ in 0..1500 {
            let only_looks = pair.random.one_in(5);
            let is_typed = match pair.random.one_in(2) {
                true => {
                    let rate = pair.rate();
                    pair.call(&rate, only_looks).await
                }
                false => {
                    let window = pair.window();
                    pair.call(&window, only_looks).await
                }
            };
            typed += u32::from(is_typed);
            match pair.random.below(60) {
                0..=2 => {
                    for limiter in [&pair.typed, &pair.words] {
                        let call = limiter.take("a", &window).block(Duration::from_secs(5));
                        let mut call = Box::pin(call.into_future());
                        if poll_once(call.as_mut()).await.is_none() {
                            waiting.push(call);
                        }
                    }
                }
                3 => {
                    waiting.clear();
                    // Tasks in the background leave the line.
                    for _ in 0..9 {
                        tokio::task::yield_now().await;
                    }
                }
                4 => {
                    for limiter in [&pair.typed, &pair.words] {
                        limiter.reset(pair.random.pick(&["a"])).await.unwrap();
                        limiter.reset("b").await.unwrap();
                    }
                }
                5..=30 => drop(pair.us.fetch_add(pair.random.below(900_000) as u64, Relaxed)),
                31 => drop(pair.us.fetch_sub(pair.random.below(900_000) as u64, Relaxed)),
                _ => {}
            }
            pair.assert_same().await;
        }
    }
    assert!(typed > 2400, "only {typed} calls went without words");
}
