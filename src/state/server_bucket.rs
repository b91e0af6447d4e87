//! A bucket: a string that spells its theoretical arrival time.

use super::{KeyContext, KeyHandle};
use crate::redis::key::KeyValue;
use commands::error::Error;
use engine::store::{self, Access};
use engine::throttle::{BucketEdit, Stored};

/// The bucket under a key, for one call.
pub struct ServerBucket<'c> {
    pub(super) key_ctx: KeyContext<'c>,
    pub(super) access: Access,
    pub(super) key: KeyHandle<'c>,
}

impl store::BucketKey for ServerBucket<'_> {
    type Error = Error;

    fn read(&mut self) -> Result<Option<Stored>, Error> {
        self.key = KeyHandle::new(self.key_ctx, self.access)?;
        match self.key.reader().value() {
            KeyValue::Empty => Ok(None),
            KeyValue::String(text) => {
                Ok(Some(Stored::decode(text.bytes()).ok_or(Error::ForeignString)?))
            }
            KeyValue::Zset | KeyValue::Other => Err(Error::NotBucket),
        }
    }

    fn write(&mut self, edit: BucketEdit) {
        let KeyHandle::Write(key) = &mut self.key else { return };
        match edit {
            BucketEdit::Keep => {}
            BucketEdit::Store(stored) => {
                key.set(stored.encode().as_bytes(), stored.expires_at_ms());
            }
            BucketEdit::Delete => key.delete(),
        }
    }
}
