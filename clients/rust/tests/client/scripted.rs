//! A server with the replies of a test, which records what it is sent.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::{Arc, Mutex};

use redis_ratelimit_client::transport::{ErrorReply, Value};
use redis_ratelimit_client::Limiter;
use serde_json::Value as Json;

use crate::testing::Double;

pub struct Script {
    server: Double,
    replies: Arc<Mutex<VecDeque<Vec<Value>>>>,
}

impl Default for Script {
    fn default() -> Script {
        let replies = Arc::new(Mutex::new(VecDeque::new()));
        let next = Arc::clone(&replies);
        let pop = move || next.lock().unwrap().pop_front().expect("no more was to be sent");
        Script { server: Double::new(move |_| ready(Ok(pop()))), replies }
    }
}

impl Script {
    /// A limiter of a server that gives these replies, one after the other.
    pub fn limiter(&self, replies: impl IntoIterator<Item = Value>) -> Limiter {
        replies.into_iter().for_each(|reply| self.will_reply(vec![reply]));
        Limiter::new(self.server.servers())
    }

    /// Adds replies; several are those to a transaction.
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
        self.replies.lock().unwrap().push_back(replies);
    }

    /// Returns the commands that were sent since the last time.
    pub fn sent(&self) -> Vec<String> {
        self.server.sent()
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
