use redis_client::Value;

use super::client::{error_line, CommandWords};
use super::Conn;

/// What RL.ACQUIRE answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquired {
    /// limited, limit, remaining, retry_after, reset_after.
    pub numbers: [i64; 5],
    /// The reservation's id, if there is one.
    pub id: Option<Vec<u8>>,
}

impl Acquired {
    /// 0 granted, 1 denied, 2 denied only because others hold the capacity.
    pub fn limited(&self) -> i64 {
        self.numbers[0]
    }

    /// The id of a reservation that must have been granted, as text.
    #[track_caller]
    pub fn id(&self) -> String {
        let id = self.id.clone().unwrap_or_else(|| panic!("denied: {:?}", self.numbers));
        String::from_utf8(id).expect("an id of plain text")
    }
}

/// What RL.ACQUIRE answers with ATMOST.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquiredPart {
    /// limited, limit, remaining, retry_after, reset_after.
    pub numbers: [i64; 5],
    /// The reservation's id, if there is one.
    pub id: Option<Vec<u8>>,
    /// How much was granted.
    pub granted: i64,
    /// How many reservations of the key have a lease that runs.
    pub running: i64,
}

/// A line of RL.HELD.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub id: Vec<u8>,
    pub quantity: i64,
    pub ms_left: i64,
}

impl Conn {
    /// The reply of RL.ACQUIRE or RL.ACQUIRE_RO.
    #[track_caller]
    pub fn acquire(&mut self, words: impl CommandWords) -> Acquired {
        acquired(&self.cmd(words))
    }

    /// The reply of RL.ACQUIRE with ATMOST.
    #[track_caller]
    pub fn acquire_part(&mut self, words: impl CommandWords) -> AcquiredPart {
        acquired_part(&self.cmd(words))
    }

    /// The reply of RL.HELD.
    #[track_caller]
    pub fn held(&mut self, key: &str) -> Vec<Held> {
        held(&self.cmd(["RL.HELD", key]))
    }

    /// The ids in the reply of RL.HELD, as text.
    #[track_caller]
    pub fn held_ids(&mut self, key: &str) -> Vec<String> {
        let text = |one: Held| String::from_utf8_lossy(&one.id).into_owned();
        self.held(key).into_iter().map(text).collect()
    }
}

/// Reads a reply of RL.ACQUIRE.
#[track_caller]
pub fn acquired(reply: &Value) -> Acquired {
    let Value::Array(values) = reply else {
        match reply {
            Value::ServerError(_) => panic!("an error: {}", error_line(reply)),
            _ => panic!("not an array: {reply:?}"),
        }
    };
    assert_eq!(values.len(), 6, "{values:?}");
    let numbers = super::ints(&Value::Array(values[..5].to_vec()));
    let id = match &values[5] {
        Value::Nil => None,
        Value::BulkString(id) => Some(id.clone()),
        other => panic!("not an id: {other:?}"),
    };
    Acquired { numbers: numbers.try_into().unwrap(), id }
}

/// Reads a reply of RL.ACQUIRE with ATMOST.
#[track_caller]
pub fn acquired_part(reply: &Value) -> AcquiredPart {
    let Value::Array(values) = reply else {
        match reply {
            Value::ServerError(_) => panic!("an error: {}", error_line(reply)),
            _ => panic!("not an array: {reply:?}"),
        }
    };
    assert_eq!(values.len(), 8, "{values:?}");
    let Acquired { numbers, id } = acquired(&Value::Array(values[..6].to_vec()));
    let [granted, running] = super::ints(&Value::Array(values[6..].to_vec()))[..] else {
        panic!("not two numbers: {values:?}")
    };
    AcquiredPart { numbers, id, granted, running }
}

/// Reads a reply of RL.HELD.
#[track_caller]
pub fn held(reply: &Value) -> Vec<Held> {
    let Value::Array(lines) = reply else { panic!("not an array: {reply:?}") };
    let line = |line: &Value| match line {
        Value::Array(fields) => match fields.as_slice() {
            [Value::BulkString(id), Value::Int(quantity), Value::Int(ms_left)] => {
                Held { id: id.clone(), quantity: *quantity, ms_left: *ms_left }
            }
            _ => panic!("not a reservation: {line:?}"),
        },
        _ => panic!("not a reservation: {line:?}"),
    };
    lines.iter().map(line).collect()
}
