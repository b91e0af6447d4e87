//! A bucket is a string that spells its theoretical arrival time.

use super::{Intent, Open, Spot};
use crate::error::Error;
use crate::limit::expiry::GRACE_MS;
use crate::limit::throttle::{Bucket, Next, Rate, Stored};
use crate::redis::key::Kind;

/// The bucket under a key, opened for one call.
pub struct BucketKey<'c> {
    key: Open<'c>,
    /// The bucket as it stands.
    pub bucket: Bucket<'c>,
}

impl<'c> BucketKey<'c> {
    /// Opens a key that is missing or holds a bucket.
    pub fn open(spot: Spot<'c>, intent: Intent, rate: &'c Rate) -> Result<BucketKey<'c>, Error> {
        let mut key = Open::new(spot, intent)?;
        let stored = match key.kind() {
            Kind::Empty => None,
            Kind::String => Some(Stored::decode(key.reader().string()).ok_or(Error::NotTat)?),
            Kind::Zset | Kind::Other => return Err(Error::NotString),
        };
        Ok(BucketKey { key, bucket: Bucket::read(rate, stored, spot.now_us) })
    }

    /// Writes what a decision left. Nothing, where the key was opened for reading.
    pub fn write(&mut self, next: Next) {
        let Open::Write(key) = &mut self.key else { return };
        match next {
            Next::Keep => {}
            Next::Store(stored) => {
                let expire_at_ms = stored.full_at_ms().saturating_add(GRACE_MS);
                key.set(stored.encode().as_bytes(), expire_at_ms);
            }
            Next::Delete => key.delete(),
        }
    }
}
