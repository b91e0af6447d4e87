use redis_client::Value;

use super::client::{elements, ints_of, text, CommandWords};
use super::Conn;

/// A reply of RL.ACQUIRE or RL.ACQUIRE_RO.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquired {
    /// limited, limit, remaining, retry_after, reset_after.
    pub numbers: [i64; 5],
    /// The reservation's id, if there is one.
    pub id: Option<Vec<u8>>,
    /// With ATMOST: the quantity that was granted, and the number of the key's reservations whose lease runs.
    pub part: Option<(i64, i64)>,
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

/// A reservation in a reply of RL.HELD.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub id: Vec<u8>,
    pub quantity: i64,
    pub ms_left: i64,
}

impl Conn {
    /// Sends RL.ACQUIRE or RL.ACQUIRE_RO.
    #[track_caller]
    pub fn acquire(&mut self, words: impl CommandWords) -> Acquired {
        acquired(&self.cmd(words))
    }

    /// Sends RL.HELD.
    #[track_caller]
    pub fn held(&mut self, key: &str) -> Vec<Held> {
        held(&self.cmd(["RL.HELD", key]))
    }

    /// Sends RL.HELD and returns the ids alone, as text.
    #[track_caller]
    pub fn held_ids(&mut self, key: &str) -> Vec<String> {
        let text = |one: Held| String::from_utf8_lossy(&one.id).into_owned();
        self.held(key).into_iter().map(text).collect()
    }

    /// Reserves one of each of the ids `r00000`, `r00001` and so on. A script is quicker than as many replies.
    #[track_caller]
    pub fn reserve_many(&mut self, key: &str, number: usize, lease: &str) {
        let script = "for at = ARGV[1], ARGV[2] do
                local id = string.format('r%05d', at)
                local call = {'RL.ACQUIRE', KEYS[1], 1000000, 0, 1, 'LEASE', ARGV[3], 'ID', id}
                if redis.call(unpack(call))[1] ~= 0 then return redis.error_reply('denied') end
            end return 'OK'";
        for from in (0..number).step_by(5_000) {
            let to = (from + 4_999).min(number - 1);
            let words = ["EVAL", script, "1", key, &from.to_string(), &to.to_string(), lease];
            assert_eq!(self.text(words), "OK");
        }
    }

    /// Adds entries, each a score and a member, to a sorted set.
    #[track_caller]
    pub fn add_entries(&mut self, key: &str, entries: impl IntoIterator<Item = [String; 2]>) {
        let entries: Vec<_> = entries.into_iter().collect();
        for part in entries.chunks(1_000) {
            let words = ["ZADD", key].map(String::from).into_iter().chain(part.concat());
            assert_eq!(self.int(words.collect::<Vec<_>>()), part.len() as i64);
        }
    }
}

/// Reads a reply of RL.ACQUIRE.
#[track_caller]
pub fn acquired(reply: &Value) -> Acquired {
    let values = elements(reply);
    let id = match &values[5] {
        Value::Nil => None,
        Value::BulkString(id) => Some(id.clone()),
        other => panic!("not an id: {other:?}"),
    };
    let part = match ints_of(&values[6..])[..] {
        [] => None,
        [granted, running] => Some((granted, running)),
        _ => panic!("not a reply of RL.ACQUIRE: {values:?}"),
    };
    Acquired { numbers: ints_of(&values[..5]).try_into().unwrap(), id, part }
}

/// Reads a reply of RL.HELD.
#[track_caller]
pub fn held(reply: &Value) -> Vec<Held> {
    let line = |line: &Value| match elements(line) {
        [Value::BulkString(id), Value::Int(quantity), Value::Int(ms_left)] => {
            Held { id: id.clone(), quantity: *quantity, ms_left: *ms_left }
        }
        _ => panic!("not a reservation: {line:?}"),
    };
    elements(reply).iter().map(line).collect()
}

/// A reply of RL.ALL.
#[derive(Debug, PartialEq)]
pub struct AllReply {
    /// The five integers and the number of the clause that decides.
    pub numbers: Vec<i64>,
    /// The five integers of each clause.
    pub clauses: Vec<Vec<i64>>,
    /// The ids of the clauses that reserve, where they do.
    pub ids: Vec<Option<String>>,
}

/// Reads a reply of RL.ALL.
#[track_caller]
pub fn all_reply(reply: &Value) -> AllReply {
    let parts = elements(reply);
    assert_eq!(parts.len(), 7, "{reply:?}");
    let clauses: Vec<_> = elements(&parts[6]).iter().map(elements).collect();
    let id = |clause: &&[Value]| clause.get(5).filter(|id| **id != Value::Nil).map(text);
    AllReply {
        numbers: ints_of(&parts[..6]),
        clauses: clauses.iter().map(|clause| ints_of(&clause[..5])).collect(),
        ids: clauses.iter().map(id).collect(),
    }
}
