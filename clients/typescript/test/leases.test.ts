/** Processes with leases never exceed the limit, and decide quickly. LEASES_SECONDS is the length of the run. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decide, proof, worstFixedWindow, worstWindow } from "./leases.js";

test("the checker finds the fullest window", () => {
  assert.equal(worstWindow([0, 1, 2, 999.9, 1000, 1001.5], 1000), 4);
  assert.equal(worstWindow([1001.5, 0, 1000, 1], 1000), 2);
  assert.equal(worstWindow([0, 1000, 2000], 1000), 1);
  assert.equal(worstFixedWindow([999, 1000, 1001, 1999.9, 2000], 1000), 3);
});

const seconds = Number(process.env["LEASES_SECONDS"] ?? 5);
const seed = Number(process.env["PROOF_SEED"] ?? Date.now() % 1_000_000);

test("no period has more than the limit, even if processes die", async () => {
  const found = await proof(seconds, seed);
  console.log(`leases: seed ${seed}, ${JSON.stringify(found)}`);
  assert.ok(Math.max(found.worst, found.worstFixed) <= found.limit, `seed ${seed}: ${found.worst} in a period`);
  // The number of units is only printed, as it depends on the other work of the machine.
  assert.ok(found.units > 0 && found.kills > 0);
});

test("no window of the calendar has more than the limit", async () => {
  const found = await proof(seconds / 2, seed, true);
  console.log(`leases: seed ${seed}, of the calendar, ${JSON.stringify(found)}`);
  assert.ok(found.worstFixed <= found.limit, `seed ${seed}: ${found.worstFixed} in a window`);
  assert.ok(found.units > 0);
});

test("a decision takes a small part of a round trip", async () => {
  const { decisionUs, roundTripUs } = await decide();
  console.log(`a decision takes ${decisionUs} us, a round trip ${roundTripUs} us`);
  assert.ok(decisionUs * 10 < roundTripUs);
});
