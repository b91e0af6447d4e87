/**
 * docs/playground in headless Chromium, driven as a person does. Its arguments are the repository and Chromium; with a folder
 * as third it leaves screenshots there.
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { chromium } from "playwright-core";

const [repository, executablePath, pictures] = process.argv.slice(2);

/** A program that serves files: what its output matches, and how to end it. */
async function serving(pattern, program, ...words) {
  // In a group of its own, as make starts another program.
  const server = spawn(program, words, {
    cwd: repository,
    env: { ...process.env, PYTHONUNBUFFERED: "1" },
    stdio: ["ignore", "pipe", "ignore"],
    detached: true,
  });
  const end = () => {
    if (server.exitCode === null && server.signalCode === null) process.kill(-server.pid);
  };
  process.on("exit", end);
  const found = await new Promise((resolve, reject) => {
    let said = "";
    server.stdout.on("data", (text) => {
      said += text;
      const found = pattern.exec(said);
      if (found !== null) resolve(found);
    });
    server.on("exit", () => reject(new Error(`${program} ended: ${said}`)));
  });
  return { found, end };
}

/** Serves a folder as a reader would; its address, and how to end it. */
async function serve(folder) {
  const options = ["--bind", "127.0.0.1", "--directory", folder];
  const { found, end } = await serving(/port (\d+) /, "python3", "-m", "http.server", "0", ...options);
  return { address: `http://127.0.0.1:${found[1]}`, end };
}

/** What make playground serves; the address that it prints, and how to end it. */
async function makePlayground() {
  const port = await new Promise((resolve) => {
    const free = createServer().listen(0, "127.0.0.1", () => {
      const { port } = free.address();
      free.close(() => resolve(port));
    });
  });
  const { found, end } = await serving(/^(http:\S+)\n[^]*Serving HTTP/m, "make", "playground", `PAGE_PORT=${port}`);
  return { address: found[1], end };
}

const profile = mkdtempSync(join(tmpdir(), "playground-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  viewport: { width: 1200, height: 1000 },
  colorScheme: "light",
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
browser.setDefaultTimeout(30_000);

/** The page, newly opened, with the engine loaded. Whatever goes wrong in it fails the test. */
async function open(address) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => assert.fail(`the page threw: ${error.stack}`));
  page.on("console", (message) => assert.notEqual(message.type(), "error", message.text()));
  await page.goto(address);
  await page.locator("html[data-ready=yes]").waitFor();
  return page;
}

const summary = (page, wanted) => page.locator("#summary", { hasText: wanted }).waitFor();
const said = (page, wanted) => page.locator("#said", { hasText: wanted }).waitFor();
/** Waits until what is known is drawn: the page draws once in each frame. */
const drawn = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => done())));
const verdicts = async (page) => {
  await drawn(page);
  return (await page.locator("#log .verdict").allTextContents()).reverse();
};
const text = async (page, place) => {
  await drawn(page);
  return page.locator(place).innerText();
};

/** Types a command over what is there. */
const type = (page, command) => page.locator("#command").fill(command);

const tests = {
  async "it is found from the root of the repository and from docs"(own) {
    const server = await serve(repository);
    const page = await open(`${server.address}/docs/playground/`);
    assert.match(await page.locator("#understood").textContent(), /allowed, 4 of 5 remain/);
    await page.close();
    server.end();
    assert.match(await own.locator("#understood").textContent(), /allowed, 4 of 5 remain/);
  },

  async "its links lead to pages"(_, address) {
    // Where the icon of a page is missing, which Chromium asks for, that is no failure.
    const page = await browser.newPage();
    for (const [name, heading] of [
      ["Every command", "# Commands"],
      ["which limit to choose", "# Which limit to choose"],
    ]) {
      await page.goto(address);
      const [answer] = await Promise.all([page.waitForNavigation(), page.getByRole("link", { name }).click()]);
      assert.equal(answer.status(), 200, name);
      assert.ok((await page.locator("body").innerText()).startsWith(`${heading}\n`), name);
    }
    await page.close();
  },

  async "Enter makes calls, and the reply has its elements named"(page) {
    await page.locator("#command").focus();
    for (let call = 0; call < 6; call += 1) await page.keyboard.press("Enter");
    await summary(page, "6 calls: 5 admitted, 1 denied; at most 5 went ahead in any 1 s.");
    await said(page, "Denied; allowed in 1 s.");
    assert.deepEqual(await verdicts(page), [...Array(5).fill("admitted"), "denied"]);
    const rows = await page.locator("#reply tbody tr").allInnerTexts();
    assert.deepEqual(
      rows.map((row) => row.split("\t").slice(0, 2).join(" ")),
      ["limited 1", "limit 5", "remaining 0", "retry_after 1", "reset_after 5"],
    );
    assert.match(await text(page, "#why"), /would be denied, and admitted in 1 s[^]*kind\s+bucket[^]*full_in\s+5000/);
    // The clock stands still until it is stepped.
    await page.getByRole("button", { name: "+1 s" }).click();
    await page.getByRole("button", { name: "Call" }).click();
    await summary(page, "7 calls: 6 admitted, 1 denied");
    // An earlier reply, by keyboard.
    await page.locator("#log").getByRole("button", { name: "1", exact: true }).press("Enter");
    await page.locator("#reply", { hasText: "Call 1:" }).waitFor();
    assert.match(await text(page, "#reply"), /remaining\s+4/);
  },

  async "calls are replayed at once, and drawn"(page) {
    await type(page, "RL.WINDOW calls:1 5 3s");
    await page.getByRole("button", { name: "Replay at once" }).click();
    await summary(page, "20 calls: 10 admitted, 10 denied; at most 5 went ahead in any 3 s.");
    assert.equal(await text(page, "#now"), "3.8 s");
    const marks = (name) => page.locator(`#chart path.${name}`).getAttribute("d");
    assert.equal((await marks("dot")).match(/M/g).length, 10);
    assert.equal((await marks("denied")).match(/M/g).length, 10);
    assert.match(
      await page.getByRole("img", { name: /Time line of calls. 20 calls: 10 admitted/ }).innerHTML(),
      /calls:1/,
    );
    // A click on the time line chooses a call.
    const box = await page.locator("#chart").boundingBox();
    await page.mouse.click(box.x + 12, box.y + 90);
    await page.locator("#reply", { hasText: "Call 1:" }).waitFor();
  },

  async "calls of a list are made at its times, by their own commands"(page) {
    await type(page, "RL.WINDOW list:1 2 10");
    await page
      .locator("#times")
      .fill("0 500ms, 1s\n2026-11-22T12:00:00Z 2026-11-22T12:00:10.5Z\n12s RL.THROTTLE list:2 0 1 1s 2\n");
    await page.getByRole("button", { name: "Replay at once" }).click();
    await summary(page, "6 calls: 3 admitted, 3 denied");
    const cells = await page.locator("#log tbody tr").allInnerTexts();
    assert.deepEqual(
      cells.reverse().map((row) => row.split("\t").slice(1, 4).join(" ")),
      [
        "0 s RL.WINDOW list:1 2 10 admitted",
        "0 s RL.WINDOW list:1 2 10 admitted",
        "0.5 s RL.WINDOW list:1 2 10 denied",
        "1 s RL.WINDOW list:1 2 10 denied",
        "10.5 s RL.WINDOW list:1 2 10 admitted",
        "12 s RL.THROTTLE list:2 0 1 1s 2 denied",
      ],
    );
    await page.locator("#times").fill("soon");
    await page.getByRole("button", { name: "Replay at once" }).click();
    await said(page, "Line 1 does not begin with a time: soon");
  },

  async "calls wait in line, and book ahead"(page) {
    await type(page, "RL.THROTTLE mail 0 2 1s BLOCK 2s");
    await page.locator("#command").press("Enter");
    await page.locator("#command").press("Enter");
    await said(page, "It waits in line");
    assert.deepEqual(await verdicts(page), ["admitted", "waits ..."]);
    assert.match(await text(page, "#why"), /waiting\s+1/);
    await page.getByRole("button", { name: "+1 s" }).click();
    await page.locator("#log", { hasText: "admitted after 0.5 s" }).waitFor();
    await type(page, "RL.THROTTLE crawl 0 2 1s AHEAD 2s");
    for (const wanted of ["Admitted; 0 of 1 remain.", "Admitted, to go on in 0.5 s; 0 of 1 remain."]) {
      await page.locator("#command").press("Enter");
      await said(page, wanted);
    }
    assert.match(await text(page, "#reply"), /wait\s+1\s+s after which/);
  },

  async "the clock plays, at a speed"(page) {
    await page.locator("#every").fill("1s");
    await page.locator("#speed").selectOption("60");
    await page.getByRole("button", { name: "Replay as the clock plays" }).click();
    await said(page, "20 calls: 20 admitted, 0 denied");
    await page.getByRole("button", { name: "Play", exact: true }).click();
    await page.locator("#now", { hasText: /[1-9]:\d\d/ }).waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    const stopped = await text(page, "#now");
    await page.waitForTimeout(200);
    assert.equal(await text(page, "#now"), stopped);
  },

  async "reservations are settled, and several limits are one call"(page) {
    await type(page, "RL.ACQUIRE report 2 1min ID one");
    await page.locator("#command").press("Enter");
    await type(page, "RL.ACQUIRE report 2 1min ID two");
    await page.locator("#command").press("Enter");
    await page.getByRole("button", { name: "RL.APPLY one" }).click();
    await page.getByRole("button", { name: "RL.RELEASE two" }).click();
    await page.locator("#why", { hasText: "1 of 2 remain" }).waitFor();
    assert.match(await text(page, "#why"), /events\s+1[^]*held\s+0/);
    await type(page, "RL.ALL 2 {u}:plan {u}:credits WINDOW 1 1h ELSE THROTTLE 4 1 1min");
    await page.locator("#command").press("Enter");
    await page.locator("#command").press("Enter");
    assert.match(
      await text(page, "#reply"),
      /clause\s+2[^]*answers 1\s+limited 1, limit 1[^]*answers 2\s+limited 0, limit 5/,
    );
  },

  async "Why explains the key of the last call, but stays with a key that was called too"(page) {
    const key = () => page.locator("#key").inputValue();
    const call = async (command) => {
      await type(page, command);
      await page.locator("#command").press("Enter");
      await drawn(page);
    };
    await call("RL.WINDOW old 5 3s");
    assert.equal(await key(), "old");
    await call("RL.THROTTLE new 4 1 1s");
    assert.equal(await key(), "new");
    assert.match(await text(page, "#why"), /RL\.INFO new/);
    await call("RL.WINDOW a 5 3s\nRL.WINDOW b 5 3s");
    assert.equal(await key(), "b");
    await page.locator("#key").selectOption("a");
    await page.getByRole("button", { name: "Replay at once" }).click();
    await said(page, "40 calls");
    assert.equal(await key(), "a");
    assert.match(await text(page, "#why"), /RL\.INFO a/);
    // So does the key of a call that is chosen in the log.
    await page.locator("#log").getByRole("button", { name: "1", exact: true }).click();
    await drawn(page);
    assert.equal(await key(), "old");
    await type(page, "RL.WINDOW slow 5 3s");
    await page.locator("#speed").selectOption("60");
    await page.getByRole("button", { name: "Replay as the clock plays" }).click();
    await said(page, "calls: ");
    assert.equal(await key(), "slow");
  },

  async "an example begins with an empty time line"(page) {
    await page.getByRole("button", { name: "Replay at once" }).click();
    await summary(page, "20 calls");
    await page.locator("#examples").selectOption({ label: "a ban" });
    await summary(page, "No calls yet");
    assert.equal(await page.locator("#log tbody tr").count(), 0);
    assert.equal(await text(page, "#now"), "0 s");
    assert.equal(await page.locator("#key option").count(), 0);
    await page.getByRole("button", { name: "Replay at once" }).click();
    await summary(page, /^30 calls/);
    assert.equal(await page.locator("#chart path.base").count(), 1);
    assert.equal(await page.locator("#key").inputValue(), "login:bob");
  },

  async "what is wrong is said before a call and after it"(page) {
    await type(page, "RL.WINDOW user:1 5 1m");
    const wrong = /period has the ambiguous unit m/;
    assert.match(await page.locator("#understood.wrong").textContent(), wrong);
    assert.equal(await page.locator("#command").getAttribute("aria-invalid"), "true");
    await page.locator("#command").press("Enter");
    await said(page, wrong);
    assert.deepEqual(await verdicts(page), ["error"]);
    await type(page, "RL.ACQUIRE k 5 60 ID");
    assert.match(await page.locator("#understood.wrong").textContent(), /^ERR/);
    await type(page, 'RL.WINDOW "user 1 5 60');
    assert.match(await page.locator("#understood.wrong").textContent(), /A quote is left open/);
  },

  async "settings and the address are kept"(page, address) {
    await page.locator("summary").click();
    await page.locator("#policies").fill("free WINDOW 2 1min");
    await page.getByRole("button", { name: "Use them, and start over" }).click();
    await type(page, "RL.WINDOW user:1 @free");
    for (let call = 0; call < 3; call += 1) await page.locator("#command").press("Enter");
    await summary(page, "3 calls: 2 admitted, 1 denied");
    const other = await open(page.url());
    assert.equal(await other.locator("#command").inputValue(), "RL.WINDOW user:1 @free");
    assert.match(await other.locator("#understood").textContent(), /allowed, 1 of 2 remain/);
    await other.close();
    await page.locator("#policies").fill("free nonsense");
    await page.getByRole("button", { name: "Use them, and start over" }).click();
    assert.notEqual(await page.locator("#settings-wrong").textContent(), "");
    assert.ok(page.url().startsWith(address));
  },

  async "every example is replayed without an error, and several are drawn below each other"(page) {
    const names = (await page.locator("#examples option").allTextContents()).slice(1);
    assert.ok(names.length >= 10);
    for (const name of names) {
      await page.locator("#examples").selectOption({ label: name });
      assert.equal(await page.locator("#understood.wrong").count(), 0, name);
      await page.getByRole("button", { name: "Replay at once" }).click();
      await said(page, /^\d+ calls: [1-9]\d* admitted.*, [1-9]\d* denied/);
      assert.doesNotMatch(await page.locator("#said").textContent(), /error|waiting/, name);
      const lanes = await page.locator("#chart path.base").count();
      assert.equal(lanes, name === "compare four" ? 4 : /limits|plan/.test(name) ? 2 : 1, name);
      if (pictures) await page.screenshot({ path: join(pictures, `${name.replace(/\W+/g, "-")}.png`), fullPage: true });
    }
    await page.getByRole("button", { name: "Start over" }).click();
    await summary(page, "No calls yet");
  },

  async "everything that can be operated has a name, in order, and the theme is that of the system"(page) {
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll("input, select, textarea, button, summary")]
        .filter(
          (one) =>
            !one.labels?.length &&
            !one.getAttribute("aria-label") &&
            !(/BUTTON|SUMMARY/.test(one.tagName) && one.textContent.trim()),
        )
        .map((one) => one.outerHTML),
    );
    assert.deepEqual(nameless, []);
    assert.equal(
      await page.evaluate(() => [...document.querySelectorAll("[tabindex]")].filter((one) => one.tabIndex > 0).length),
      0,
    );
    const color = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await color();
    await page.emulateMedia({ colorScheme: "dark" });
    assert.notEqual(await color(), light);
    await page.setViewportSize({ width: 400, height: 800 });
    const overflows = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok((await overflows()) <= 0, `${await overflows()} pixels too wide on a telephone`);
  },

  async "where the engine is missing the page says so"(_, address) {
    const page = await browser.newPage();
    await page.route("**/engine.wasm", (route) => route.fulfill({ status: 404 }));
    for (const each of [address, `file://${join(repository, "docs/playground/index.html")}`]) {
      await page.goto(each);
      await page.getByRole("alert").filter({ hasText: "make playground" }).waitFor();
    }
    await page.close();
  },
};

const server = await makePlayground();
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  const page = await open(server.address);
  try {
    await test(page, server.address);
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`failed ${name}\n${error.stack}`);
    if (pictures) await page.screenshot({ path: join(pictures, `failed-${failed}.png`), fullPage: true });
  }
  await page.close();
}
await browser.close();
server.end();
rmSync(profile, { recursive: true, force: true });
process.exitCode = failed > 0 ? 1 : 0;
