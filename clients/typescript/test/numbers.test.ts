/** The numbers of clients/spec/numbers.json, which all clients share. No server is needed. */

import assert from "node:assert/strict";
import { describe as suite, test } from "node:test";

import { FAILURES, PAUSE_MS, PROBE_MS } from "../src/breaker.js";
import * as leases from "../src/leases.js";
import { SYSTEM_TIMER } from "../src/local.js";
import * as reservation from "../src/reservation.js";
import type { Window } from "../src/index.js";
import { limit as limitOf, NUMBERS } from "./fixtures.js";

suite("the numbers that all clients share", () => {
  test("the breaker has them", () => {
    assert.deepEqual({ failures: FAILURES, pause_ms: PAUSE_MS, probe_ms: PROBE_MS }, NUMBERS.breaker);
  });

  test("leases have them", () => {
    const lease = {
      least_ms: leases.MIN_LEASE_MS,
      margin: leases.MARGIN,
      least_margin_ms: leases.MIN_MARGIN_MS,
      denial_ms: leases.DENIAL_MS,
      retry_ms: leases.RETRY_MS,
      lost_ms: leases.LOST_MS,
      most_late: leases.MAX_LATE,
    };
    assert.deepEqual(lease, NUMBERS.lease);
    const ahead = {
      round_trips: leases.AHEAD_ROUND_TRIPS,
      least_ms: leases.AHEAD_MS,
      most_of_lease: leases.MAX_AHEAD,
    };
    assert.deepEqual(ahead, NUMBERS.ahead);
  });

  test("renewals have them", () => {
    const renewal = {
      per_lease: reservation.RENEWALS_PER_LEASE,
      default_lease_ms: reservation.DEFAULT_LEASE_MS,
      least_ms: reservation.MIN_RENEWAL_MS,
    };
    assert.deepEqual(renewal, NUMBERS.renewal);
  });

  test("a reservation is held for this long", () => {
    for (const { limit, lease_ms: lease, held_ms: expected } of NUMBERS.held) {
      const { heldMs } = new leases.Leases("k", limitOf(limit) as Window, { lease }, SYSTEM_TIMER, () => {});
      assert.equal(heldMs, expected, JSON.stringify(limit));
    }
  });

  test("batches are of the same size", () => {
    for (const { expected, needed, limit, reservations, batch } of NUMBERS.batches) {
      const about = JSON.stringify({ expected, needed, limit, reservations });
      assert.equal(leases.batchSize(expected, needed, limit ?? undefined, reservations), batch, about);
    }
  });
});
