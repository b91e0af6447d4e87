//! Replies as values.

use crate::reply::ReplySink;
use std::cell::RefCell;

/// A reply, as a server sends it over RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nil.
    Nil,
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// An array. A map is an array of its names and values.
    Array(Vec<Value>),
    /// An error, which begins with its code.
    Error(String),
}

/// Puts a reply together.
#[derive(Default)]
pub(super) struct ValueBuilder {
    written: RefCell<PartialReply>,
}

#[derive(Default)]
struct PartialReply {
    /// Arrays that lack elements, each inside of the one before, with how many it lacks.
    open: Vec<(Vec<Value>, usize)>,
    done: Option<Value>,
}

impl PartialReply {
    fn add(&mut self, mut value: Value) {
        while let Some((values, lacks)) = self.open.last_mut() {
            values.push(value);
            *lacks = lacks.saturating_sub(1);
            if *lacks > 0 {
                return;
            }
            let full = self.open.pop().unwrap_or_default();
            value = Value::Array(full.0);
        }
        self.done = Some(value);
    }
}

impl ValueBuilder {
    /// Returns the whole reply, if it was written.
    pub(super) fn take(&self) -> Option<Value> {
        self.written.borrow_mut().done.take()
    }
}

impl ReplySink for &ValueBuilder {
    fn array(&self, len: usize) {
        let mut written = self.written.borrow_mut();
        match len {
            0 => written.add(Value::Array(Vec::new())),
            len => written.open.push((Vec::with_capacity(len), len)),
        }
    }

    fn map(&self, fields: usize) {
        self.array(fields.saturating_mul(2));
    }

    fn integer(&self, value: i64) {
        self.written.borrow_mut().add(Value::Integer(value));
    }

    fn text(&self, text: &[u8]) {
        self.written.borrow_mut().add(Value::Bulk(text.to_vec()));
    }

    fn nil(&self) {
        self.written.borrow_mut().add(Value::Nil);
    }
}
