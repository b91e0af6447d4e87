/**
 * Repeats tests that failed because the machine stood still: then a server may answer nothing for longer than a deadline.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Busy } from "../src/index.js";

/** A timer that is this late, in milliseconds, means that the machine stood still. */
const STOP_MS = 50;
/** The maximum number of tries of a test. */
const TRIES = 5;

/** Reports late timers. It runs in its own process, which the work of a test cannot delay. */
const PROGRAM = `
let woken = performance.now();
const wake = () => {
  const now = performance.now();
  if (now - woken > ${STOP_MS}) process.send(now - woken);
  woken = now;
  setTimeout(wake, 5);
};
process.on("disconnect", () => process.exit());
process.send(0);
wake();
`;

/** A process with timers that runs during the tests, and ends with them. */
class Sleeper {
  #longest = 0;

  static async start(): Promise<Sleeper> {
    const started = spawn(process.execPath, ["-e", PROGRAM], { stdio: ["ignore", "ignore", "ignore", "ipc"] });
    await once(started, "message");
    const sleeper = new Sleeper();
    started.on("message", (ms) => (sleeper.#longest = Math.max(sleeper.#longest, Number(ms))));
    // It keeps no test running.
    started.unref();
    started.channel?.unref();
    return sleeper;
  }

  /** Returns the longest stop in milliseconds since the last call; 0 if there was none. */
  async longest(): Promise<number> {
    // A stop that has just ended is reported when the process has run again.
    await sleep(2 * STOP_MS);
    const longest = this.#longest;
    this.#longest = 0;
    return longest;
  }
}

let shared: Promise<Sleeper> | undefined;

/** Returns whether a call failed because this process stood still. */
export const isOwnStop = (error: unknown): boolean =>
  error instanceof Busy && error.message.startsWith("this program was busy");

/** Registers a test that is repeated if it failed and the machine, or this process, stood still meanwhile. */
export function testUnlessStopped(name: string, work: () => Promise<void>): void {
  void test(name, async () => {
    const sleeper = await (shared ??= Sleeper.start());
    await sleeper.longest();
    for (let tries = 1; ; tries += 1) {
      try {
        await work();
        return;
      } catch (error) {
        const stop = await sleeper.longest();
        if (stop === 0 || tries === TRIES) throw error;
        console.log(`tried again, as the machine stood still for ${Math.round(stop)} ms: ${String(error)}`);
      }
    }
  });
}
