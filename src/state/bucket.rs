//! A bucket is a string that spells its theoretical arrival time.

use super::{Open, ServerKey};
use crate::redis::key::KeyValue;
use commands::error::Error;
use engine::store;
use engine::throttle::{BucketEdit, Stored, StoredText};

/// The bucket under a key, for one call.
pub struct ServerBucket<'c> {
    at: ServerKey<'c>,
    key: Open<'c>,
}

impl<'c> ServerBucket<'c> {
    /// A key that is yet to be read.
    pub fn new(at: ServerKey<'c>) -> ServerBucket<'c> {
        ServerBucket { at, key: Open::closed(at.key_ctx) }
    }
}

impl store::BucketKey for ServerBucket<'_> {
    type Error = Error;

    fn read(&mut self) -> Result<Option<Stored>, Error> {
        self.key = Open::new(self.at.key_ctx, self.at.intent)?;
        match self.key.reader().value() {
            KeyValue::Empty => Ok(None),
            KeyValue::String(text) => Ok(Some(Stored::decode(text.bytes()).ok_or(Error::NotTat)?)),
            KeyValue::Zset | KeyValue::Other => Err(Error::NotString),
        }
    }

    fn write(&mut self, next: BucketEdit) {
        let Open::Write(key) = &mut self.key else { return };
        match next {
            BucketEdit::Keep => {}
            BucketEdit::Store(stored) => {
                let mut text = StoredText::new();
                stored.write(&mut text);
                key.set(text.as_bytes(), stored.expires_at_ms());
            }
            BucketEdit::Delete => key.delete(),
        }
    }
}
