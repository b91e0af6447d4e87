//! A server that answers what a test says, and remembers what it was sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use redis_ratelimit_client::transport::{
    BoxFuture, Command, Connection, ErrorReply, Failure, Value,
};
use redis_ratelimit_client::Limiter;
use serde_json::Value as Json;

use crate::testing::server_on;

#[derive(Clone, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    replies: VecDeque<Vec<Value>>,
    sent: Vec<String>,
}

impl Script {
    /// A limiter of a server that gives these replies, one after the other.
    pub fn limiter(&self, replies: impl IntoIterator<Item = Value>) -> Limiter {
        let replies = replies.into_iter().map(|reply| vec![reply]);
        self.0.lock().unwrap().replies.extend(replies);
        limiter_on(self)
    }

    /// The next replies are those to a transaction, if there are several.
    pub fn will_reply(&self, replies: Vec<Value>) {
        let replies = match replies.as_slice() {
            [_] => replies,
            _ => {
                let text = |text: &str| Value::Bytes(text.into());
                let mut all = vec![text("OK")];
                all.extend(replies.iter().map(|_| text("QUEUED")));
                all.push(Value::Array(replies));
                all
            }
        };
        self.0.lock().unwrap().replies.push_back(replies);
    }

    /// Returns what was sent since the last time, with blanks between the words.
    pub fn sent(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().sent)
    }
}

pub fn limiter_on<C: Connection + Clone>(connection: &C) -> Limiter {
    Limiter::new(server_on(connection))
}

impl Connection for Script {
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>> {
        let is_ping = commands[0].word(0) == Some(b"PING");
        let replies = if is_ping {
            vec![Value::Bytes("PONG".into())]
        } else {
            let mut state = self.0.lock().unwrap();
            state.sent.extend(commands.iter().map(ToString::to_string));
            state.replies.pop_front().expect("no more was to be sent")
        };
        Box::pin(async move { Ok(replies) })
    }
}

/// A reply as the tables write it.
pub fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Number(number) => Value::Integer(number.as_i64().unwrap()),
        Json::String(text) => Value::Bytes(text.clone().into_bytes()),
        Json::Array(values) => Value::Array(values.iter().map(value_of).collect()),
        Json::Object(error) => Value::Error(ErrorReply::new(error["error"].as_str().unwrap())),
        Json::Bool(_) => panic!("no reply is {json}"),
    }
}
