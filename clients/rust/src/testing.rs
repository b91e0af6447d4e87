//! What the tests in src and in tests/client share: the tables in clients/spec, which the tests of all clients read, and a
//! transport to a server that a test plays. tests/client includes this file, so it uses only what is public.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::transport::{Address, BoxFuture, Connection, Failure, Servers, Transport};
use crate::{Period, Window};

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
pub(crate) fn window(of: &Json) -> Window {
    if let Some(policy) = of.as_str() {
        return Window::policy(policy);
    }
    let [limit, length, options] = of["window"].as_array().unwrap().as_slice() else { panic!() };
    let window = set_options(Window::new(limit.as_u64().unwrap(), period(length)), options);
    match options["unit"].as_str() {
        Some(unit) => window.unit(unit).unwrap(),
        None => window,
    }
}

/// A transport to one server, whose connections are clones of this one.
struct CloneOf<C>(C);

impl<C: Connection + Clone> Transport for CloneOf<C> {
    fn connect(
        &self,
        _: Option<Address>,
    ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
        let connection = Arc::new(self.0.clone()) as Arc<dyn Connection>;
        Box::pin(async move { Ok(connection) })
    }

    fn name(&self) -> String {
        "the double".into()
    }

    fn host(&self) -> String {
        "double".into()
    }
}

pub(crate) fn transport_to(connection: &(impl Connection + Clone)) -> impl Transport {
    CloneOf(connection.clone())
}

/// Returns the server that a connection stands for.
pub(crate) fn server_on(connection: &(impl Connection + Clone)) -> Servers {
    Servers::single(transport_to(connection))
}
