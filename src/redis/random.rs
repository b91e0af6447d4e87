//! Unguessable ids.

use super::api::api;
use crate::limit::decimal::Text;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CHARACTERS: usize = 16;

/// 16 characters of 6 random bits each, from the server's cryptographic generator.
pub fn id<const N: usize>() -> Text<N> {
    let mut random = [0u8; CHARACTERS];
    // SAFETY: writes exactly the bytes of the array.
    unsafe { api!(RedisModule_GetRandomBytes(random.as_mut_ptr(), random.len())) };
    let mut id = Text::new();
    for byte in random {
        let character = ALPHABET.get(usize::from(byte & 63)).copied().unwrap_or(b'A');
        id.push(&[character]);
    }
    id
}
