/** The proof of leases, and how long a decision takes. LEASES_SECONDS is how long the proof runs. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decide, proof, worstWindow } from "./leases.js";

test("the checker finds the window that has the most", () => {
  assert.equal(worstWindow([0, 1, 2, 999.9, 1000, 1001.5], 1000), 4);
  assert.equal(worstWindow([1001.5, 0, 1000, 1], 1000), 2);
  assert.equal(worstWindow([0, 1000, 2000], 1000), 1);
});

test("no period has more than the limit, whatever dies", async () => {
  const seconds = Number(process.env["LEASES_SECONDS"] ?? 5);
  const seed = Number(process.env["LEASES_SEED"] ?? Date.now() % 1_000_000);
  const found = await proof(seconds, seed);
  console.log(`leases: seed ${seed}, ${JSON.stringify(found)}`);
  assert.ok(found.worst <= found.limit, `seed ${seed}: ${found.worst} in a period`);
  // That much was really at stake: a third of what the limit allows, on a machine that does other things as well.
  assert.ok(found.units > (found.limit * seconds) / 3, `${found.units} units`);
  assert.ok(found.worst > found.limit / 2 && found.kills > 0 && found.stops > 0);
});

test("a decision takes a small part of a round trip", async () => {
  const { decisionUs, roundTripUs } = await decide();
  console.log(`a decision takes ${decisionUs} us, a round trip ${roundTripUs} us`);
  assert.ok(decisionUs * 10 < roundTripUs);
});
