//! A key that holds a bucket: a string with the digits of its theoretical arrival time.

use super::{KeyContext, KeyHandle};
use crate::redis::key::KeyValue;
use crate::state::State;
use commands::error::Error;
use engine::store::{self, Access};
use engine::throttle::{BucketEdit, StoredBucket};

/// A key that holds a bucket, for one call.
pub struct ServerBucket<'c> {
    pub(super) state: &'static State,
    pub(super) key_ctx: KeyContext<'c>,
    pub(super) access: Access,
    pub(super) key: KeyHandle<'c>,
}

impl store::BucketKey for ServerBucket<'_> {
    type Error = Error;

    fn read(&mut self) -> Result<Option<StoredBucket>, Error> {
        self.key = KeyHandle::open(self.state, self.key_ctx, self.access)?;
        match self.key.reader().value() {
            KeyValue::Empty => Ok(None),
            KeyValue::String(text) => decode_bucket(text.bytes()).map(Some),
            KeyValue::Zset | KeyValue::Hash | KeyValue::Other => Err(Error::NotBucket),
        }
    }

    fn write(&mut self, edit: BucketEdit) {
        let Some(mut key) = self.key.take(self.key_ctx) else { return };
        match edit {
            BucketEdit::Keep => {}
            BucketEdit::Store(stored) => {
                key.set(stored.encode().as_bytes(), stored.expires_at_ms());
            }
            BucketEdit::Delete => key.delete(),
        }
        key.close();
    }
}

/// Decodes a bucket. Refuses a string that the module did not write.
pub(super) fn decode_bucket(text: &[u8]) -> Result<StoredBucket, Error> {
    StoredBucket::decode(text).ok_or(Error::ForeignString)
}
