/** When a test is tried again. No server is needed. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Sleeper, TRIES, unlessStopped } from "./machine.js";

/** Stops the sleeper for `ms` milliseconds, as if the machine stood still. */
async function stop(sleeper: Sleeper, ms: number): Promise<void> {
  sleeper.signal("SIGSTOP");
  await sleep(ms);
  sleeper.signal("SIGCONT");
}

test("a test that failed while the machine stood still is tried again", async () => {
  const sleeper = await Sleeper.start();
  let tries = 0;
  const fails = async () => {
    tries += 1;
    if (tries > 2) return;
    await stop(sleeper, 150);
    assert.fail("too late");
  };
  await unlessStopped(fails, () => Promise.resolve(sleeper))();
  assert.equal(tries, 3);
});

test("it is tried so often at most", async () => {
  const sleeper = await Sleeper.start();
  let tries = 0;
  const fails = async () => {
    tries += 1;
    await stop(sleeper, 150);
    assert.fail("too late");
  };
  await assert.rejects(unlessStopped(fails, () => Promise.resolve(sleeper))(), /too late/);
  assert.equal(tries, TRIES);
});

test("a test that failed on a machine that runs is not tried again", async () => {
  let tries = 0;
  const still = { longest: () => Promise.resolve(0) } as Sleeper;
  const fails = () => {
    tries += 1;
    return Promise.reject(new Error("a real fault"));
  };
  await assert.rejects(unlessStopped(fails, () => Promise.resolve(still))(), /a real fault/);
  assert.equal(tries, 1);
});
