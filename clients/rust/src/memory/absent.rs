//! Stands in for `memory` without that feature. Its types have no values, so the rest of the crate needs no condition.

use std::convert::Infallible;

use crate::calls::LimitCall;
use crate::core::Clock;
use crate::transport::{Command, ErrorReply, Value};
use crate::Reply;

pub(crate) struct Memory(Infallible);

impl Memory {
    pub fn clock(&self) -> Option<Clock> {
        match self.0 {}
    }

    pub fn ask_together<'a>(&self, _: impl IntoIterator<Item = &'a Command>) -> Vec<Value> {
        match self.0 {}
    }

    pub fn decide(&self, _: &TypedCall) -> Result<Reply, ErrorReply> {
        match self.0 {}
    }
}

pub(crate) enum TypedCall {}

impl TypedCall {
    pub fn new(_: &LimitCall<'_>) -> Option<TypedCall> {
        None
    }
}
