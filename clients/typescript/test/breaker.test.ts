/** The states of a breaker. The tests set the time, and no server is needed. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Breaker, FAILURES, PAUSE_MS } from "../src/breaker.js";
import { Unreachable } from "../src/index.js";

const ERROR = new Unreachable("gone");

/** Returns a breaker, and a function that sets the time. */
function breakerAt(context: TestContext): { breaker: Breaker; at: (ms: number) => void } {
  let now = 0;
  context.mock.method(performance, "now", () => now);
  return { breaker: new Breaker("host:1"), at: (ms) => (now = ms) };
}

/** Returns one that opened at 5500 milliseconds. */
function openedBreaker(context: TestContext) {
  const held = breakerAt(context);
  for (let call = 1; call <= FAILURES; call += 1) {
    assert.equal(held.breaker.isOpen, false);
    held.breaker.recordFailure(call * 1000, call * 1000 + 500, ERROR);
  }
  held.at(5500);
  return held;
}

test("it opens after failures in a row, and says why while a call probes", async (context) => {
  const { breaker, at } = openedBreaker(context);
  assert.deepEqual([breaker.isOpen, breaker.refusal()], [true, undefined]);
  let fail = (_: Error) => {};
  const probing = breaker.probe(() => new Promise((_, reject) => (fail = reject)));
  assert.equal(breaker.refusal()?.message, "host:1 does not answer: gone");
  assert.equal(breaker.refusal()?.cause, ERROR);
  fail(new Unreachable("still gone"));
  await assert.rejects(probing, { message: "host:1 does not answer: still gone" });
  // The next call probes after a pause.
  at(5500 + PAUSE_MS - 1);
  assert.equal(breaker.refusal()?.message, "host:1 does not answer: still gone");
  at(5500 + PAUSE_MS);
  assert.equal(breaker.refusal(), undefined);
});

test("a probe that is answered closes it, also with an error reply", async (context) => {
  for (const answer of [undefined, Object.assign(new Error("WRONGPASS"), { name: "ReplyError" })]) {
    const { breaker } = openedBreaker(context);
    await breaker.probe(() => (answer === undefined ? Promise.resolve() : Promise.reject(answer)));
    assert.deepEqual([breaker.isOpen, breaker.lastServed], [false, -Infinity]);
    context.mock.restoreAll();
  }
});

test("an error reply that says that no call can be served is an answer", (context) => {
  const { breaker } = breakerAt(context);
  for (let call = 1; call <= 2 * FAILURES; call += 1) {
    breaker.recordFailure(call * 1000, call * 1000 + 500, ERROR);
    breaker.recordReply(call * 1000 + 700, false);
    assert.deepEqual([breaker.isOpen, breaker.lastServed], [false, -Infinity]);
  }
  breaker.recordReply(9000);
  breaker.recordReply(9500, false);
  assert.deepEqual([breaker.lastServed, breaker.silentMs(9700)], [9000, 200]);
});

test("calls that fail at the same time count as one, and those that began before an answer do not count", (context) => {
  const { breaker } = breakerAt(context);
  for (let call = 0; call < 10; call += 1) breaker.recordFailure(1000, 1500 + call, ERROR);
  breaker.recordFailure(2000, 2500, ERROR);
  assert.equal(breaker.isOpen, false);
  breaker.recordReply(3200);
  breaker.recordFailure(3000, 3500, ERROR);
  breaker.recordFailure(4000, 4500, ERROR);
  breaker.recordFailure(5000, 5500, ERROR);
  assert.equal(breaker.isOpen, false);
  breaker.recordFailure(6000, 6500, ERROR);
  assert.equal(breaker.isOpen, true);
});
