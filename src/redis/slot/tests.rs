use super::*;

#[test]
fn slots_are_those_of_the_server() {
    // CLUSTER KEYSLOT of Redis 7.0.
    for (key, slot) in [
        (&b""[..], 0),
        (b"123456789", 12_739),
        (b"foo", 12_182),
        (b"{foo}bar", 12_182),
        (b"{user1000}.following", 3_443),
        (b"foo{}{bar}", 8_363),
        (b"foo{{bar}}zap", 4_015),
        (b"a}b", 7_866),
    ] {
        assert_eq!(key_slot(key), slot, "{}", key.escape_ascii());
    }
}

#[test]
fn every_slot_has_a_tag() {
    for slot in 0..SLOTS {
        let key = [b"{", &slot_tag(slot)[..], b"}secret"].concat();
        assert_eq!(key_slot(&key), slot);
    }
}
