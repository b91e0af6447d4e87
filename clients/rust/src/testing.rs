//! What the tests in src and in tests/client share: the tables in clients/spec, which the tests of all clients read, and a
//! server that a test plays. tests/client includes this file, so it uses only what is public.

use std::future::{ready, Future};
use std::sync::{Arc, Mutex};

use serde_json::Value as Json;

use crate::transport::{BoxFuture, Command, Connection, Servers, Value};
use crate::{Error, Period, Window};

/// Reads a table. One that is an object is its only element.
pub(crate) fn table(name: &str) -> Vec<Json> {
    let path = format!("{}/../spec/{name}", env!("CARGO_MANIFEST_DIR"));
    match serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() {
        Json::Array(cases) => cases,
        object => vec![object],
    }
}

/// Returns a text or a number as text.
pub(crate) fn text(of: &Json) -> String {
    of.as_str().map_or_else(|| of.to_string(), Into::into)
}

pub(crate) fn period(of: &Json) -> Period {
    text(of).parse().unwrap()
}

/// Sets the options of a window, except for its unit.
pub(crate) fn set_options(mut window: Window, options: &Json) -> Window {
    if let Some(buckets) = options["buckets"].as_u64() {
        window = window.buckets(buckets as u32);
    }
    if options["fixed"] == true {
        window = window.fixed();
    }
    if let Some(start) = options["start"].as_str() {
        window = window.start(start);
    }
    match options["tz"].as_str() {
        Some(zone) => window.tz(zone),
        None => window,
    }
}

/// Returns the window of a limit: the name of a policy, or a limit, a period and options.
pub(crate) fn parse_window(of: &Json) -> Result<Window, Error> {
    if let Some(policy) = of.as_str() {
        return Ok(Window::policy(policy));
    }
    let [limit, length, options] = of["window"].as_array().unwrap().as_slice() else { panic!() };
    let window = Window::new(limit.as_u64().unwrap(), text(length).parse::<Period>()?);
    let window = set_options(window, options);
    options["unit"].as_str().map_or(Ok(window.clone()), |unit| window.clone().unit(unit))
}

pub(crate) fn window(of: &Json) -> Window {
    parse_window(of).unwrap()
}

type Replies<'a> = BoxFuture<'a, Result<Vec<Value>, String>>;
type Answer = dyn Fn(&[Command]) -> Replies<'static> + Send + Sync;

/// A server that a test plays.
#[derive(Clone)]
pub(crate) struct Double {
    answer: Arc<Answer>,
    sent: Arc<Mutex<Vec<String>>>,
    /// Has a weak reference for each call that is under way.
    calls: Arc<()>,
}

impl Double {
    /// Creates a server that answers what is sent, except for PING.
    pub(crate) fn new<F>(answer: impl Fn(&[Command]) -> F + Send + Sync + 'static) -> Double
    where
        F: Future<Output = Result<Vec<Value>, String>> + Send + 'static,
    {
        let answer = Arc::new(move |sent: &[Command]| Box::pin(answer(sent)) as Replies<'static>);
        Double { answer, sent: Arc::default(), calls: Arc::default() }
    }

    pub(crate) fn servers(&self) -> Servers {
        Servers::by(self.clone())
    }
}

#[allow(dead_code)] // Only tests/client uses these.
impl Double {
    /// Returns whether a call is under way.
    pub(crate) fn is_asked(&self) -> bool {
        Arc::weak_count(&self.calls) > 0
    }

    /// Returns what was sent since the last time, except for PING.
    pub(crate) fn sent(&self) -> Vec<String> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

impl Connection for Double {
    fn send<'a>(&'a self, commands: &'a [Command]) -> Replies<'a> {
        if commands[0].word(0) == Some(b"PING") {
            return Box::pin(ready(Ok(vec![Value::Bytes(b"PONG".to_vec())])));
        }
        self.sent.lock().unwrap().extend(commands.iter().map(ToString::to_string));
        let (call, answer) = (Arc::downgrade(&self.calls), (self.answer)(commands));
        Box::pin(async move {
            let _call = call;
            answer.await
        })
    }
}
