#!/usr/bin/env python3
"""The arithmetic of the engine, proved with z3 for integers of any size.

    lemmas.py prove    proves every lemma and prints what it assumes; needs z3 (PyPI: z3-solver, Debian: python3-z3)
    lemmas.py table    prints the table that ties the formulas to the Rust: crates/engine/src/lemmas.txt
    lemmas.py check    compares that file with the formulas

The functions below are the formulas. They take Python's integers and z3's alike, and have the names of the engine's
functions. The same table is checked by the engine's own test `the_formulas_that_were_proved_are_the_ones_that_run`, so that a
formula that is proved here and another that runs there make a test fail.
"""

import pathlib
import random
import sys

ATTOS_PER_NS = 10**9
ATTOS_PER_US = 10**12
NS_PER_MS = 10**6
MAX_PERIOD_MS = 3_155_760_000_000
MAX_PERIOD_NS = MAX_PERIOD_MS * NS_PER_MS
LAST_US = 2**53 - 1
LAST_TAT = 10**28 - 1
MAX_SUM = 2**63 - 1
WRAP = 2**64
WIDE = 2**128
ROWS = 100
TABLE = pathlib.Path(__file__).resolve().parents[2] / "engine" / "src" / "lemmas.txt"


def divide(a, b):
    """a / b and what is left, of integers from 0 on."""
    return (a // b, a % b) if isinstance(a, int) else (a / b, a % b)


# ---- The formulas: crates/engine/src/throttle.rs ----


def cost(period_ns, count, quantity):
    """Rate::cost, in attoseconds."""
    whole, rest = divide(quantity * period_ns, count)
    return whole * ATTOS_PER_NS + divide(rest * ATTOS_PER_NS, count)[0]


def refund(period_ns, count, quantity):
    """Rate::refund."""
    rest = divide(quantity * period_ns, count)[1]
    return cost(period_ns, count, quantity) + (1 if rest * ATTOS_PER_NS % count > 0 else 0)


def affordable(period_ns, count, limit, room):
    """Rate::affordable: the largest quantity whose cost is at most `room`."""
    if room >= cost(period_ns, count, limit):
        return limit
    return min(((room + 1) * count - 1) // (period_ns * ATTOS_PER_NS), limit)


# ---- The formulas: crates/engine/src/entry.rs and window.rs ----


def before(total, weight):
    """Entry::total_before."""
    return (total - weight) % WRAP


def sum_since(total, first_total, first_weight):
    """Entry::sum_since."""
    return (total - before(first_total, first_weight)) % WRAP


def middle(low, high):
    """The next place that window.rs' bisect looks at."""
    half = divide(low + high, 2)[0]
    return max(half, low + 1)


def events_freed_at(entries, need):
    """WindowCount::events_freed_at_us of entries (time, total, weight), the oldest first: when `need` of them has left, but
    for the period. By the bisection alone."""
    first, tail = entries[0], entries[-1]
    enough = lambda entry: sum_since(entry[1], first[1], first[2]) >= need
    if enough(first):
        return first[0]
    found, low, high = tail, first[0], tail[0]
    while high - low > 1:
        at = middle(low, high)
        event = next((entry for entry in entries if entry[0] >= at), None)
        if event is not None and event[0] < high:
            if enough(event):
                found, high = event, at
            else:
                low = event[0]
        else:
            high = at
    return found[0]


def judge(limit, counted, held, least):
    """Use::judge: whether it is allowed, and else how much must leave."""
    free = max(max(limit - counted, 0) - held, 0)
    return least <= free, max(counted + held + least - limit, 0)


# ---- The lemmas ----


def prove():
    import z3

    ints = z3.Ints
    proved = 0

    def lemma(name, assumptions, claim, steps=()):
        """Proves that the assumptions imply the claim; `steps` are proved first, each with those before it, and then used."""
        nonlocal proved
        known = [formula for _, formula in assumptions]
        for step in [*steps, claim]:
            solver = z3.Solver()
            solver.set("timeout", 60_000)
            solver.add(*known, z3.Not(step))
            found = solver.check()
            if found != z3.unsat:
                print(f"NOT PROVED: {name}: {step}\n  {found}", solver.model() if found == z3.sat else "")
                sys.exit(1)
            known.append(step)
        # Assumptions that contradict each other would prove anything.
        solver = z3.Solver()
        solver.set("timeout", 60_000)
        solver.add(*[formula for _, formula in assumptions])
        found = solver.check()
        if found == z3.unsat:
            print(f"NOT PROVED: {name}: its assumptions contradict each other")
            sys.exit(1)
        proved += 1
        print(f"proved: {name}")
        for text, _ in assumptions:
            print(f"    where {text}")
        if found != z3.sat:
            print("    (z3 found no example of these assumptions in a minute, and no contradiction)")

    # A division is known by what defines it: a = b * whole + rest, 0 <= rest < b.
    def quotient(a, b, whole, rest):
        return z3.And(a == b * whole + rest, rest >= 0, rest < b)

    q, p, c, w, r, s, t, f, g = ints("quantity period_ns count whole rest part left exact over")
    x = q * p
    division = [
        ("quantity from 1, period_ns from 1, count from 1", z3.And(q >= 1, p >= 1, c >= 1)),
        ("whole, rest = quantity * period_ns / count, its rest", quotient(x, c, w, r)),
        ("part = rest * 1e9 / count", quotient(r * ATTOS_PER_NS, c, s, t)),
    ]
    total = w * ATTOS_PER_NS + s
    lemma(
        "cost is quantity * period / count in attoseconds, rounded down once, whatever is divided first",
        division,
        quotient(x * ATTOS_PER_NS, c, total, t),
        [x * ATTOS_PER_NS == (c * w + r) * ATTOS_PER_NS, c * s + t == r * ATTOS_PER_NS],
    )

    # From here on X = period_ns * 1e9 is the period in attoseconds, and cost(q) the floor of q * X / c.
    big, n, one, k, e, d = ints("period limit cost1 costn rest1 restn")
    floors = [
        ("period, count and limit from 1", z3.And(big >= 1, c >= 1, n >= 1)),
        ("cost1 = floor(period / count)", quotient(big, c, one, e)),
        ("bucket = costn = floor(limit * period / count)", quotient(n * big, c, k, d)),
    ]
    lemma(
        "limit single calls fit in a full bucket",
        floors,
        n * one <= k,
        [n * big == n * (c * one + e), n * (c * one + e) == c * (n * one) + n * e, n * e >= 0,
         c * (n * one) <= c * k + d, c * (n * one) < c * (k + 1)],
    )
    lemma(
        "and not one more",
        [*floors, ("limit <= cost1, as for every limit up to 1e9 at up to 1e9 a second", n <= one)],
        (n + 1) * one > k,
        [n * big == n * (c * one + e), n * (c * one + e) == c * (n * one) + n * e, n * e <= n * (c - 1),
         c * k <= c * (n * one) + n * (c - 1), n * (c - 1) < n * c, c * k < c * (n * one) + n * c,
         c * (n * one) + n * c == c * (n * one + n), c * k < c * (n * one + n), k < n * one + n],
    )
    lemma(
        "at up to 1e9 a second an interval is 1e9 attoseconds at least",
        [("count <= period_ns, which is a nanosecond for each unit", z3.And(c >= 1, c <= p)),
         ("cost1 = floor(period_ns * 1e9 / count)", quotient(p * ATTOS_PER_NS, c, one, e))],
        one >= ATTOS_PER_NS,
        [p * ATTOS_PER_NS >= c * ATTOS_PER_NS, c * one + e >= c * ATTOS_PER_NS, c * one + c > c * ATTOS_PER_NS,
         c * (one + 1) > c * ATTOS_PER_NS],
    )
    lemma(
        "an interval is rounded by less than one part in a million",
        [("at up to 1e12 a second: count <= 1000 * period_ns", z3.And(c >= 1, p >= 1, c <= 1000 * p)),
         ("cost1 = floor(period_ns * 1e9 / count)", quotient(p * ATTOS_PER_NS, c, one, e))],
        (p * ATTOS_PER_NS - c * one) * 1_000_000 < p * ATTOS_PER_NS,
        [e < c, e * 1_000_000 < c * 1_000_000],
    )
    lemma(
        "taking in two calls costs no more than in one, and less than an attosecond less for each call",
        [("count from 1", c >= 1),
         ("a, b, both = floors of A / count, B / count, (A + B) / count",
          z3.And(big >= 0, x >= 0, quotient(big, c, one, e), quotient(p, c, k, d), p >= 0, quotient(big + p, c, w, r)))],
        z3.And(one + k <= w, w <= one + k + 1),
        [c * (one + k) <= c * w + r, c * (one + k) < c * (w + 1), one + k <= w,
         c * w <= c * (one + k) + e + d, c * w < c * (one + k) + 2 * c, c * w < c * (one + k + 2)],
    )

    # Refunds.
    u = z3.Int("refund")
    taken = [
        ("count from 1, period from 0", z3.And(c >= 1, big >= 0)),
        ("cost = floor(period / count), of the quantity's time", quotient(big, c, k, d)),
        ("refund = cost, or one more where something was rounded off", u == z3.If(d > 0, k + 1, k)),
    ]
    lemma("a refund is the exact time rounded up", taken, z3.And(c * u >= big, c * (u - 1) < big))
    now, tat, after = ints("now tat after")
    lemma(
        "giving back what was taken leaves no debt, and gives less than one attosecond more",
        [*taken, ("tat at or after now", tat >= now),
         ("after = max(tat + cost - refund, now)", after == z3.If(tat + k - u > now, tat + k - u, now))],
        z3.And(after <= tat, after >= tat - 1, after >= now),
    )
    lemma(
        "a refund never passes full, however much is given back",
        [*taken, ("after = max(tat - refund, now), tat at or after now",
                  z3.And(tat >= now, after == z3.If(tat - u > now, tat - u, now)))],
        z3.And(after >= now, after <= tat),
    )
    room = z3.Int("room")
    lemma(
        "what is affordable: cost(q) <= room just where q * period < (room + 1) * count",
        [("count from 1, period and room from 0", z3.And(c >= 1, big >= 0, room >= 0)),
         ("cost = floor(q * period / count)", quotient(big, c, k, d))],
        (k <= room) == (big < (room + 1) * c),
        [z3.Implies(k <= room, c * k <= c * room), z3.Implies(k >= room + 1, c * k >= c * (room + 1))],
    )
    a, m = ints("affordable left_over")
    lemma(
        "so the largest affordable quantity is ((room + 1) * count - 1) / period",
        [("count and period from 1, room from 0", z3.And(c >= 1, big >= 1, room >= 0)),
         ("affordable = floor(((room + 1) * count - 1) / period)", quotient((room + 1) * c - 1, big, a, m))],
        z3.And(a * big < (room + 1) * c, (a + 1) * big >= (room + 1) * c),
    )

    # No wrap.
    lemma(
        "quantity * period_ns is below 2^128, and so is what is left of it times 1e9",
        [("quantity below 2^64, period up to 100 years, count from 1 to 2^63 - 1",
          z3.And(q >= 0, q < WRAP, p >= 1, p <= MAX_PERIOD_NS, c >= 1, c <= MAX_SUM)),
         ("rest < count", z3.And(r >= 0, r < c))],
        z3.And(x < WIDE, r * ATTOS_PER_NS < WIDE),
        [q * p <= (WRAP - 1) * p],
    )
    lemma(
        "of a quantity up to limit the cost is at most 100 years, far below 2^128",
        [("quantity up to limit, limit * period_ns <= 100 years * count, as Rate::new checks",
          z3.And(q >= 0, q <= n, p >= 1, c >= 1, n * p <= MAX_PERIOD_NS * c)),
         ("cost = floor(quantity * period_ns * 1e9 / count)", quotient(x * ATTOS_PER_NS, c, k, d))],
        z3.And(k <= MAX_PERIOD_NS * ATTOS_PER_NS, k < 2**92),
        [q * p <= n * p, x <= MAX_PERIOD_NS * c, c * k <= x * ATTOS_PER_NS,
         c * k <= MAX_PERIOD_NS * ATTOS_PER_NS * c, c * k < c * (MAX_PERIOD_NS * ATTOS_PER_NS + 1)],
    )
    us, debt, bucket = ints("now_us debt_ns bucket")
    lemma(
        "a stored time, read at any moment, and what a call adds to it stay below 2^95",
        [("now up to 2^53 - 1 microseconds, bucket and debt up to 100 years",
          z3.And(us >= 0, us <= LAST_US, bucket >= 0, bucket <= MAX_PERIOD_NS * ATTOS_PER_NS,
                 debt >= 0, debt <= MAX_PERIOD_NS)),
         ("cost up to 100 years", z3.And(k >= 0, k <= MAX_PERIOD_NS * ATTOS_PER_NS))],
        us * ATTOS_PER_US + bucket + debt * ATTOS_PER_NS + k < 2**95,
    )
    lemma(
        "a time up to the last splits into 64 bits of nanoseconds and 30 bits of attoseconds",
        [("time up to LAST_TAT", z3.And(tat >= 0, tat <= LAST_TAT)),
         ("ns, attos = time / 1e9, its rest", quotient(tat, ATTOS_PER_NS, w, r))],
        z3.And(w < WRAP, r < 2**30, w < 10**19),
    )

    # Sums.
    T, W0, t0, v, total2 = ints("total weight0 total0 weight total2")
    stored = lambda value: z3.And(value >= 0, value < WRAP)
    real = z3.Int("real")
    lemma(
        "the difference of two running totals is the sum of the weights between them, also past 2^64",
        [("total0 is stored modulo 2^64, weight0 counts in it", z3.And(stored(t0), W0 >= 0, W0 < WRAP)),
         ("real, the sum of the weights from there on, is below 2^64", stored(real)),
         ("total = total before them + real, modulo 2^64", T == (before(t0, W0) + real) % WRAP)],
        sum_since(T, t0, W0) == real,
    )
    lemma(
        "an event adds its weight to every sum, alone or where it shares the newest entry",
        [("as above", z3.And(stored(t0), W0 >= 0, W0 < WRAP, stored(real), T == (before(t0, W0) + real) % WRAP)),
         ("weight such that the sum stays below 2^64", z3.And(v >= 0, real + v < WRAP)),
         ("total2 = total + weight, modulo 2^64", total2 == (T + v) % WRAP)],
        sum_since(total2, t0, W0) == real + v,
    )
    lemma(
        "uncounting a part of the oldest entry takes just that off every sum",
        [("as above", z3.And(stored(t0), W0 >= 1, W0 < WRAP, stored(real), T == (before(t0, W0) + real) % WRAP)),
         ("v of its weight is uncounted, and all of it is in the sum", z3.And(v >= 0, v <= W0, W0 <= real))],
        sum_since(T, t0, W0 - v) == real - v,
    )
    whole = z3.Int("whole")
    lemma(
        "while the total is below 2^63, counting keeps the sum of all entries below 2^64 without looking at it",
        [("total is below 2^63", z3.And(T >= 0, T < 2**63)),
         ("whole, the sum of all entries, is at most total + MAX_SUM", z3.And(whole >= 0, whole <= T + MAX_SUM)),
         ("weight up to MAX_SUM", z3.And(v >= 0, v <= MAX_SUM)),
         ("total2 = total + weight, modulo 2^64, is below 2^63 too", z3.And(total2 == (T + v) % WRAP, total2 < 2**63))],
        z3.And(whole + v <= total2 + MAX_SUM, whole + v < WRAP),
    )
    limit, counted, held, least, leave, granted = ints("limit counted held least leave granted")
    ask = [("all from 0", z3.And(limit >= 0, counted >= 0, held >= 0, least >= 0, leave >= 0, granted >= 0))]
    zmax = lambda one, other: z3.If(one > other, one, other)
    free = zmax(zmax(limit - counted, 0) - held, 0)
    need = zmax(counted + held + least - limit, 0)
    lemma(
        "a grant never passes the limit, and leaves what it must",
        [*ask, ("it is allowed: granted + leave <= free", granted + leave <= free), ("something is granted", granted >= 1)],
        counted + held + granted + leave <= limit,
    )
    gone = z3.Int("gone")
    left = z3.If(gone <= counted, counted - gone, 0)
    held_left = z3.If(gone <= counted, held, held - (gone - counted))
    lemma(
        "once need has left, the call is allowed, and once one less has, it is not",
        [*ask, ("least up to limit, and it is denied", z3.And(least >= 1, least <= limit, least > free)),
         ("gone of counted and held has left", z3.And(gone >= 0, gone <= counted + held))],
        (least <= zmax(zmax(limit - left, 0) - held_left, 0)) == (gone >= need),
    )

    # The bisection. `answer` is the time of the first entry that is enough; which entries are enough grows with time.
    low, high, found, answer, at, event = ints("low high found answer middle event")
    isfound = lambda low, high, found: z3.And(
        low < answer, answer <= found, high <= found, low < high, z3.Or(answer < high, answer >= found))
    mid = at == z3.If((low + high) / 2 > low + 1, (low + high) / 2, low + 1)
    base = [
        ("low < answer <= found, and no entry from high to before found", isfound(low, high, found)),
        ("high - low > 1", high - low > 1),
        ("middle = max((low + high) / 2, low + 1)", mid),
    ]
    lemma("the bisection looks between its bounds", base, z3.And(low < at, at < high))
    first_from = ("event is the first entry from middle on, before high",
                  z3.And(event >= at, event < high, z3.Not(z3.And(at <= answer, answer < event))))
    lemma("where that entry is enough, it is found, and the bounds come closer",
          [*base, first_from, ("it is enough: not before the answer", event >= answer)],
          z3.And(isfound(low, at, event), at - low < high - low))
    lemma("where it is not enough, all up to it is not",
          [*base, first_from, ("it is not enough: before the answer", event < answer)],
          z3.And(isfound(event, high, found), high - event < high - low))
    lemma("where there is none, the upper bound moves",
          [*base, ("no entry from middle to before high", z3.Not(z3.And(at <= answer, answer < high)))],
          z3.And(isfound(low, at, found), at - low < high - low))
    lemma("at its end the bisection has found the first entry that is enough",
          [base[0], ("high - low <= 1", high - low <= 1)], found == answer)
    lemma("it begins with these bounds",
          [("the first entry is not enough, the newest is", z3.And(low < answer, answer <= found)),
           ("high is the newest entry's time", high == found)],
          isfound(low, high, found))
    # The bisection of Rate::affordable, on costs that grow with the quantity.
    fits, too_much, most = ints("fits too_much most")
    lemma("the bisection for what is affordable keeps its bounds and ends at the largest that fits",
          [("fits <= most < too_much, where most is the largest quantity that fits", z3.And(fits <= most, most < too_much)),
           ("middle = (fits + too_much) / 2", at == (fits + too_much) / 2), ("fits from 0", fits >= 0)],
          z3.And(z3.Implies(too_much - fits > 1, z3.And(fits < at, at < too_much)),
                 z3.Implies(z3.And(too_much - fits > 1, at <= most), z3.And(at <= most, most < too_much)),
                 z3.Implies(too_much - fits <= 1, fits == most)))
    print(f"{proved} lemmas proved with z3 {z3.get_version_string()}")


# ---- The table ----


def rows():
    """Lines of numbers: `gcra max_burst count period_ms quantity room cost refund affordable bucket`, and
    `sum start weights.. | need | sum answer`."""
    chance = random.Random(28)
    size = lambda bits: chance.getrandbits(chance.randint(1, bits)) or 1
    while True:
        # With a count of 1 nothing is rounded off.
        period_ms, count, max_burst = size(41), chance.choice([1, size(62), size(62)]), size(62) - 1
        limit = max_burst + 1
        period_ns = period_ms * NS_PER_MS
        if period_ms > MAX_PERIOD_MS or limit * period_ns > MAX_PERIOD_NS * count:
            continue
        quantity = min(size(62), limit) if chance.random() < 0.7 else limit
        bucket = cost(period_ns, count, limit)
        room = chance.choice([0, bucket, bucket - 1, cost(period_ns, count, quantity),
                              cost(period_ns, count, quantity) - 1, chance.randint(0, bucket)])
        room = max(room, 0)
        yield "gcra", [max_burst, count, period_ms, quantity, room, cost(period_ns, count, quantity),
                       refund(period_ns, count, quantity), affordable(period_ns, count, limit, room), bucket]
        total = chance.choice([0, chance.getrandbits(64), WRAP - 1, WRAP - chance.randint(1, 300)])
        entries, at = [], 0
        for _ in range(chance.randint(1, 12)):
            weight = chance.choice([1, 1, 2, chance.randint(1, 100), size(40)])
            total, at = (total + weight) % WRAP, at + chance.choice([1, 2, chance.randint(1, 50_000)])
            entries.append((at, total, weight))
        counted = sum_since(entries[-1][1], entries[0][1], entries[0][2])
        assert counted == sum(weight for *_, weight in entries)
        some = sum(weight for *_, weight in entries[: chance.randint(1, len(entries))])
        need = chance.choice([1, counted, chance.randint(1, counted), some, min(some + 1, counted)])
        answer = events_freed_at(entries, need)
        summed = 0
        for entry in entries:
            summed += entry[2]
            if summed >= need:
                assert answer == entry[0], (entries, need)
                break
        yield "sum", [number for entry in entries for number in entry] + [need, counted, answer]


def table():
    lines = rows()
    text = ["# Printed by crates/proofs/lemmas/lemmas.py table, which says what the columns are."]
    text += [" ".join([kind, *map(str, numbers)]) for kind, numbers in (next(lines) for _ in range(ROWS))]
    return "\n".join(text) + "\n"


def main():
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what == "prove":
        prove()
    elif what == "table":
        sys.stdout.write(table())
    elif what == "check":
        if TABLE.read_text("utf-8") != table():
            sys.exit(f"{TABLE} is not what the formulas say: lemmas.py table prints it")
    else:
        sys.exit(__doc__)


main()
