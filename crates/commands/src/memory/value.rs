//! Replies as values.

use crate::reply::ReplySink;
use std::cell::RefCell;

/// A reply, as a server sends it over RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nil,
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// An array. A map is an array of alternating names and values.
    Array(Vec<Value>),
    /// An error, which begins with its code.
    Error(String),
}

#[derive(Default)]
pub(super) struct ValueBuilder {
    written: RefCell<PartialReply>,
}

#[derive(Default)]
struct PartialReply {
    /// The incomplete arrays, each an element of the one before, with the number of elements that are still to come.
    open: Vec<(Vec<Value>, usize)>,
    complete: Option<Value>,
}

impl PartialReply {
    fn add(&mut self, mut value: Value) {
        while let Some((values, missing)) = self.open.last_mut() {
            values.push(value);
            *missing = missing.saturating_sub(1);
            if *missing > 0 {
                return;
            }
            let (values, _) = self.open.pop().unwrap_or_default();
            value = Value::Array(values);
        }
        self.complete = Some(value);
    }
}

impl ValueBuilder {
    /// Returns the reply once it is complete.
    pub(super) fn take(&self) -> Option<Value> {
        self.written.borrow_mut().complete.take()
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
