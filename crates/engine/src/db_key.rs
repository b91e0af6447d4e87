//! The name of a key with the number of its database.

/// A key of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DbKey<'k> {
    pub db: i32,
    pub name: &'k [u8],
}

/// A key of a database, with a copy of its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedDbKey {
    pub db: i32,
    pub name: Box<[u8]>,
}

impl OwnedDbKey {
    #[inline]
    pub fn borrowed(&self) -> DbKey<'_> {
        DbKey { db: self.db, name: &self.name }
    }
}

impl From<DbKey<'_>> for OwnedDbKey {
    fn from(key: DbKey) -> OwnedDbKey {
        OwnedDbKey { db: key.db, name: key.name.into() }
    }
}
