//! Answers of RL.ALL.

use super::{ints, text, Value};

/// What RL.ALL answers.
#[derive(Debug, PartialEq)]
pub struct AllReply {
    /// The five integers and the number of the clause that decides.
    pub numbers: Vec<i64>,
    /// What each clause says.
    pub clauses: Vec<Vec<i64>>,
    /// The ids of the clauses that reserve, where they do.
    pub ids: Vec<Option<String>>,
}

/// Reads an answer of RL.ALL.
#[track_caller]
pub fn all_reply(reply: &Value) -> AllReply {
    let Value::Array(parts) = reply else { panic!("no answer: {reply:?}") };
    assert_eq!(parts.len(), 7, "{reply:?}");
    let Value::Array(clauses) = &parts[6] else { panic!("no clauses: {reply:?}") };
    let parts_of = |clause: &Value| match clause {
        Value::Array(parts) => parts.clone(),
        _ => panic!("no clause: {clause:?}"),
    };
    let id = |clause: &Value| match parts_of(clause).get(5) {
        None | Some(Value::Nil) => None,
        Some(id) => Some(text(id)),
    };
    AllReply {
        numbers: ints(&Value::Array(parts[..6].to_vec())),
        clauses: clauses
            .iter()
            .map(|one| ints(&Value::Array(parts_of(one)[..5].to_vec())))
            .collect(),
        ids: clauses.iter().map(id).collect(),
    }
}
