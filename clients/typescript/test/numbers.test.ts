/** The numbers of clients/spec/numbers.json, which all clients share. No server is needed. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { FAILURES, PAUSE_MS, PROBE_MS } from "../src/breaker.js";
import { countedMs, MIN_LEASE_MS } from "../src/local.js";
import * as reservation from "../src/reservation.js";
import type { Window } from "../src/index.js";
import { limit as limitOf, NUMBERS } from "./fixtures.js";

test("the numbers that all clients share", () => {
  assert.deepEqual({ failures: FAILURES, pause_ms: PAUSE_MS, probe_ms: PROBE_MS }, NUMBERS.breaker);
  assert.equal(MIN_LEASE_MS, NUMBERS.lease.least_ms);
  const renewal = {
    per_lease: reservation.RENEWALS_PER_LEASE,
    default_lease_ms: reservation.DEFAULT_LEASE_MS,
    least_ms: reservation.MIN_RENEWAL_MS,
  };
  assert.deepEqual(renewal, NUMBERS.renewal);
  assert.deepEqual({ pauses_ms: reservation.UNSENT_PAUSES_MS }, NUMBERS.settling);
  for (const { limit, lease_ms: lease, held_ms: expected } of NUMBERS.held) {
    assert.equal(lease + countedMs(limitOf(limit) as Window), expected, JSON.stringify(limit));
  }
});
