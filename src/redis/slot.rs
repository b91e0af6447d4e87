//! Cluster slots: the CRC16 (XMODEM) of a key's hash tag, or of the whole key, modulo 16384.

const SLOTS: u16 = 16_384;
const POLYNOMIAL: u16 = 0x1021;

pub fn key_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// Returns a hash tag of two bytes whose keys are in `slot`.
pub fn slot_tag(slot: u16) -> [u8; 2] {
    // Each CRC belongs to one pair of bytes, so each slot has four pairs. At least one of them does not contain a `}`.
    let crcs = (0..4).map(|at: u16| slot | at.wrapping_mul(SLOTS));
    crcs.map(with_crc16).find(|pair| !pair.contains(&b'}')).unwrap_or_default()
}

/// Returns the text between the first `{` and the next `}`, or the whole key if that text is empty or missing.
fn hash_tag(key: &[u8]) -> &[u8] {
    let inside = || {
        let open = key.iter().position(|&byte| byte == b'{')?;
        let after_open = key.get(open.checked_add(1)?..)?;
        after_open.get(..after_open.iter().position(|&byte| byte == b'}')?)
    };
    inside().filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        // All eight steps of a byte at once, for this polynomial.
        let high = (crc >> 8) ^ u16::from(byte);
        let mixed = high ^ (high >> 4);
        (crc << 8) ^ (mixed << 12) ^ (mixed << 5) ^ mixed
    })
}

/// Returns the two bytes with this CRC, found by running its 16 steps backwards.
fn with_crc16(crc: u16) -> [u8; 2] {
    let back = |crc: u16, _| {
        if crc & 1 == 0 {
            crc >> 1
        } else {
            ((crc ^ POLYNOMIAL) >> 1) | 0x8000
        }
    };
    (0..16).fold(crc, back).to_be_bytes()
}

#[cfg(test)]
mod tests;
