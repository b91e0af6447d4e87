/**
 * Whether the machine stood still. Then a server that works well answers nobody for longer than a deadline, and a test that
 * asks for its decision finds none.
 */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

/** From here on it stood still, in milliseconds: what is woken on a machine that runs well is never that late. */
const STOP_MS = 50;
/** How often a test is tried at most. */
export const TRIES = 5;

/** Tells how late it is woken each time, if that is much. A process of its own is not kept by the work of a test. */
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

/** A process that sleeps beside the tests, and ends with them. */
export class Sleeper {
  readonly #process: ChildProcess;
  #longest = 0;

  private constructor(started: ChildProcess) {
    this.#process = started;
  }

  static async start(): Promise<Sleeper> {
    const started = spawn(process.execPath, ["-e", PROGRAM], { stdio: ["ignore", "ignore", "ignore", "ipc"] });
    await once(started, "message");
    const sleeper = new Sleeper(started);
    started.on("message", (ms) => (sleeper.#longest = Math.max(sleeper.#longest, Number(ms))));
    // It keeps no test running.
    started.unref();
    started.channel?.unref();
    return sleeper;
  }

  signal(signal: "SIGSTOP" | "SIGCONT"): void {
    this.#process.kill(signal);
  }

  /** The longest stop in milliseconds since this was asked last; 0 if there was none. */
  async longest(): Promise<number> {
    // One that has just ended is told when the sleeper has run again.
    await sleep(2 * STOP_MS);
    const longest = this.#longest;
    this.#longest = 0;
    return longest;
  }
}

let shared: Promise<Sleeper> | undefined;
const sharedSleeper = (): Promise<Sleeper> => (shared ??= Sleeper.start());

/** The same work, which is done again if it failed and the machine stood still meanwhile. */
export function unlessStopped(work: () => Promise<void>, beside = sharedSleeper): () => Promise<void> {
  return async () => {
    const sleeper = await beside();
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
  };
}

/** A test that runs again if it failed and the machine stood still meanwhile. */
export function testUnlessStopped(name: string, work: () => Promise<void>): void {
  void test(name, unlessStopped(work));
}
