//! The server's context takes the replies of commands.

use crate::redis::context::Context;
use commands::reply::ReplySink;

impl ReplySink for Context<'_> {
    #[inline]
    fn array(&self, len: usize) {
        self.reply_array(len);
    }

    #[inline]
    fn map(&self, fields: usize) {
        self.reply_map(fields);
    }

    #[inline]
    fn integer(&self, value: i64) {
        self.reply_integer(value);
    }

    #[inline]
    fn text(&self, text: &[u8]) {
        self.reply_text(text);
    }

    #[inline]
    fn nil(&self) {
        self.reply_nil();
    }
}
