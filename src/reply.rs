//! Writing the replies of commands to the server's context.

use crate::redis::context::Context;
use commands::reply::ReplySink;

impl ReplySink for Context<'_> {
    fn array(&self, len: usize) {
        self.reply_array(len);
    }

    fn map(&self, fields: usize) {
        self.reply_map(fields);
    }

    fn integer(&self, value: i64) {
        self.reply_integer(value);
    }

    fn text(&self, text: &[u8]) {
        self.reply_text(text);
    }

    fn nil(&self) {
        self.reply_nil();
    }
}
