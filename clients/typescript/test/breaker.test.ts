/** The states of a breaker. The tests set the time, and no server is needed. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Breaker, FAILURES, LATE_CALLS, PAUSE_MS } from "../src/breaker.js";
import { Limiter, Unreachable } from "../src/index.js";
import { OWN_TRANSPORT } from "../src/transport.js";
import { heldTimers } from "./fixtures.js";

const ERROR = new Error("gone");

/** A breaker whose probes the test ends, with their number. */
class Probed {
  readonly breaker = new Breaker(() => {
    this.probes += 1;
    return new Promise((answer, fail) => (this.end = { answer, fail }));
  });
  probes = 0;
  end = { answer: () => {}, fail: (_: Error) => {} };

  /** Returns one that is open. */
  static opened(): Probed {
    const probed = new Probed();
    for (let call = 1; call <= FAILURES; call += 1) {
      assert.equal(probed.breaker.isOpen, false);
      probed.breaker.recordFailure(call * 1000, call * 1000 + 500, ERROR);
    }
    return probed;
  }
}

test("it opens after failures in a row, and says why", () => {
  const { breaker } = Probed.opened();
  assert.equal(breaker.isOpen, true);
  assert.equal(breaker.refusal("host:1").message, "host:1 does not answer: gone");
  assert.equal(breaker.refusal().cause, ERROR);
});

test("an error reply that says that no call can be served is an answer", () => {
  const { breaker } = new Probed();
  for (let call = 1; call <= 2 * FAILURES; call += 1) {
    breaker.recordFailure(call * 1000, call * 1000 + 500, ERROR);
    breaker.recordReply(call * 1000 + 700, false);
    assert.deepEqual([breaker.isOpen, breaker.lastServed], [false, -Infinity]);
  }
  breaker.recordReply(9000);
  breaker.recordReply(9500, false);
  assert.equal(breaker.lastServed, 9000);
});

test("an answer in between resets the failures", () => {
  const { breaker } = new Probed();
  breaker.recordFailure(1000, 1500, ERROR);
  breaker.recordFailure(2000, 2500, ERROR);
  breaker.recordReply(2700);
  assert.equal(breaker.lastServed, 2700);
  breaker.recordFailure(3000, 3500, ERROR);
  assert.equal(breaker.isOpen, false);
});

test("calls that fail at the same time count as one", () => {
  const { breaker } = new Probed();
  for (let call = 0; call < 10; call += 1) breaker.recordFailure(1000, 1500 + call, ERROR);
  assert.equal(breaker.isOpen, false);
});

test("a failure does not count if another call was answered meanwhile", () => {
  const { breaker } = new Probed();
  breaker.recordReply(1200);
  breaker.recordFailure(1000, 1500, ERROR);
  breaker.recordFailure(2000, 2500, ERROR);
  breaker.recordFailure(3000, 3500, ERROR);
  assert.equal(breaker.isOpen, false);
  breaker.recordFailure(4000, 4500, ERROR);
  assert.equal(breaker.isOpen, true);
});

test("calls of a busy program are forgiven until too many in a row got no answer", () => {
  const { breaker } = new Probed();
  for (let round = 1; round <= 2; round += 1) {
    for (let call = 1; call <= LATE_CALLS; call += 1) {
      const began = round * 100_000 + call * 1000;
      assert.ok(breaker.forgivesLate(began, began + 500));
      assert.ok(breaker.forgivesLate(began + 200, began + 700), "at the same time");
    }
    assert.ok(!breaker.forgivesLate(round * 150_000, round * 150_000 + 500));
    breaker.recordReply(round * 150_000 + 900, false);
  }
});

test("a probe is sent at once, and the next a pause after one that failed", async (context) => {
  const timers = heldTimers(context);
  const probed = Probed.opened();
  assert.deepEqual([probed.probes, timers.length], [1, 0]);
  probed.end.fail(new Error("still gone"));
  await new Promise(setImmediate);
  assert.deepEqual([probed.probes, timers.length], [1, 1]);
  assert.equal(timers[0]?.ms, PAUSE_MS);
  timers[0]?.call();
  assert.equal(probed.probes, 2);
  assert.equal((probed.breaker.refusal().cause as Error).message, "still gone");
});

test("a probe that is answered closes it", async () => {
  const probed = Probed.opened();
  probed.end.answer();
  await new Promise(setImmediate);
  assert.deepEqual([probed.breaker.isOpen, probed.breaker.lastServed], [false, -Infinity]);
});

test("the answer to a call closes it, and a probe that fails then sends no other", async (context) => {
  const timers = heldTimers(context);
  const probed = Probed.opened();
  probed.breaker.recordReply(4000);
  assert.equal(probed.breaker.isOpen, false);
  probed.end.fail(ERROR);
  await new Promise(setImmediate);
  assert.deepEqual([probed.probes, timers.length], [1, 0]);
});

test("a node that leaves the cluster is not probed any more", async (context) => {
  const timers = heldTimers(context);
  let nodes = ["gone"];
  const transport = {
    name: "the cluster",
    nodeOf: () => nodes[0],
    hasNode: (node: string) => nodes.includes(node),
    send: async () => Promise.reject(new Unreachable("gone")),
    probe: () => Promise.reject(ERROR),
  };
  const limiter = new Limiter({ [OWN_TRANSPORT]: transport } as never);
  for (let call = 1; call <= FAILURES; call += 1) await assert.rejects(limiter.info("k"));
  const cleared = context.mock.method(globalThis, "clearTimeout");
  nodes = ["other"];
  await assert.rejects(limiter.info("k"));
  assert.deepEqual([timers.length, cleared.mock.callCount()], [1, 1]);
});

test("a reset closes it", () => {
  const { breaker } = Probed.opened();
  breaker.reset();
  assert.equal(breaker.isOpen, false);
});
