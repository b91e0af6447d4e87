//! The case table that throttled (Go) and redis-cell share, at `4 1 1s`, and what it leaves out. One bucket lives
//! through all cases.

/// One call and its answer; times in milliseconds, `at_ms` from the first call.
#[derive(Clone, Copy, Debug)]
pub struct GcraCase {
    pub at_ms: i64,
    pub quantity: i64,
    pub limited: i64,
    pub remaining: i64,
    pub retry_ms: i64,
    pub reset_ms: i64,
}

pub const MAX_BURST: u64 = 4;
pub const COUNT: u64 = 1;
pub const PERIOD_MS: u64 = 1000;

const fn case(
    at_ms: i64,
    quantity: i64,
    limited: i64,
    remaining: i64,
    retry_ms: i64,
    reset_ms: i64,
) -> GcraCase {
    GcraCase { at_ms, quantity, limited, remaining, retry_ms, reset_ms }
}

#[rustfmt::skip]
pub const CASES: [GcraCase; 32] = [
    //    at  qty  limited  remaining  retry  reset

    // 0: more than the bucket holds can never be granted.
    case(    0,  6, 1, 5,   -1,    0),
    // 1-5: the burst of max_burst + 1 ...
    case(    0,  1, 0, 4,   -1, 1000),
    case(    0,  1, 0, 3,   -1, 2000),
    case(    0,  1, 0, 2,   -1, 3000),
    case(    0,  1, 0, 1,   -1, 4000),
    case(    0,  1, 0, 0,   -1, 5000),
    // 6: ... and no more.
    case(    0,  1, 1, 0, 1000, 5000),
    // 7-11: it drains by one a second, also between whole seconds.
    case( 3000,  1, 0, 2,   -1, 3000),
    case( 3100,  1, 0, 1,   -1, 3900),
    case( 4000,  1, 0, 1,   -1, 4000),
    case( 8000,  1, 0, 4,   -1, 1000),
    case( 9500,  1, 0, 4,   -1, 1000),
    // 12: quantity 0 looks.
    case( 9500,  0, 0, 4,   -1, 1000),
    // 13: several at once ...
    case( 9500,  2, 0, 2,   -1, 3000),
    // 14: ... all or nothing.
    case( 9500,  5, 1, 2, 3000, 3000),
    // 15: throttled and redis-cell end here. One millisecond too early is too early,
    case(12499,  5, 1, 4,    1,    1),
    // 16: the returned moment is exact.
    case(12500,  5, 0, 0,   -1, 5000),
    // 17-18: giving back.
    case(12500, -2, 0, 2,   -1, 3000),
    case(12500,  3, 1, 2, 1000, 3000),
    // 19-20: never beyond full, and nothing to a full one.
    case(12500, -9, 0, 5,   -1,    0),
    case(12500, -1, 0, 5,   -1,    0),
    // 21-22: fractions of the interval.
    case(20000,  5, 0, 0,   -1, 5000),
    case(20001,  1, 1, 0,  999, 4999),
    // 23-24: if the clock is set back a little, what has drained since then is lost.
    case(22500,  0, 0, 2,   -1, 2500),
    case(21000,  1, 0, 0,   -1, 5000),
    // 25: if it is set back far, the bucket is empty, and no worse.
    case(10000,  1, 1, 0, 1000, 5000),
    // 26-28: that was written back, so the returned wait is exact.
    case(10999,  1, 1, 0,    1, 4001),
    case(11000,  1, 0, 0,   -1, 5000),
    case(11000,  0, 0, 0,   -1, 5000),
    // 29-31: looking and what can never be heal nothing: the state is still the one of 11000.
    case( 5000,  0, 0, 0,   -1, 5000),
    case( 5000,  6, 1, 0,   -1, 5000),
    case(12000,  1, 0, 0,   -1, 5000),
];
