/**
 * docs/playground in headless Chromium, driven as a person does. Its arguments are the repository and Chromium; with a folder
 * as third it leaves screenshots there.
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
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
  const pattern = /^http:..127.0.0.1:0(\S+)\n[^]*port (\d+) /m;
  const { found, end } = await serving(pattern, "make", "playground", "PAGE_PORT=0");
  return { address: `http://127.0.0.1:${found[2]}${found[1]}`, end };
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

const said = (page, wanted) => page.locator("#said", { hasText: wanted }).waitFor();
/** Waits until what is known is drawn: the page draws once in each frame. */
const drawn = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => done())));
const texts = async (page, place) => {
  await drawn(page);
  return page.locator(place).allInnerTexts();
};
const verdicts = async (page) => (await texts(page, "#log .verdict")).reverse();
const text = async (page, place) => (await texts(page, place)).join("\n");
/** The figures of each limit, without their names. */
const figures = async (page) => (await texts(page, ".figures")).map((list) => list.match(/^\d+$/gm).map(Number));

/** Types commands over what is there. */
const type = (page, ...commands) => page.locator("#command").fill(commands.join("\n"));
const call = (page) => page.locator("#command").press("Control+Enter");
const replay = (page) => page.locator("#command").press("Enter");
const startOver = (page) => page.getByRole("button", { name: "Start over" }).click();
const step = async (page, by) => {
  await page.getByLabel("by", { exact: true }).fill(by);
  await page.getByRole("button", { name: "Step" }).click();
};

/** What is outside of its card, or of the page. */
const sticksOut = () => {
  const outside = [];
  for (const one of document.querySelectorAll("body, body *")) {
    const scrolls = one.parentElement.closest(".scroll, .legend svg");
    const within = (one.parentElement.closest("section, form") ?? document.documentElement).getBoundingClientRect();
    const { left, right, width } = one.getBoundingClientRect();
    const isOut = left < within.left - 0.5 || right > within.right + 0.5;
    if (scrolls === null && width > 0 && isOut) outside.push(`${one.outerHTML.slice(0, 60)} ${left} to ${right}`);
  }
  return outside;
};

const tests = {
  async "it opens with the first example, from the root of the repository and from docs"(own) {
    const server = await serve(repository);
    const page = await open(`${server.address}/docs/playground/`);
    for (const each of [own, page]) {
      await said(each, "20 calls: 8 admitted, 12 denied.");
      assert.deepEqual(await figures(each), [[8, 1, 5]]);
      assert.match(await text(each, "#understood"), /^Up to 5 at once, and 1 in 1s in the long run\.$/);
      assert.match(await text(each, "#clock"), /stopped at 3\.8 s .*Calls are made at this moment/);
    }
    await page.close();
    server.end();
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

  async "calls at one moment are one mark with their number, and the reply has its elements named"(page) {
    await startOver(page);
    for (let made = 0; made < 6; made += 1) await call(page);
    await said(page, "Denied; allowed in 1 s.");
    assert.deepEqual(await verdicts(page), [...Array(5).fill("admitted"), "denied"]);
    assert.deepEqual(await figures(page), [[5, 5, 5]]);
    assert.deepEqual((await page.locator("#lanes text").allTextContents()).slice(-1), ["5"]);
    assert.deepEqual(
      (await texts(page, "#reply tbody tr")).map((row) => row.split("\t").slice(0, 2).join(" ")),
      ["limited 1", "limit 5", "remaining 0", "retry_after 1", "reset_after 5"],
    );
    assert.match(
      await text(page, "#holds"),
      /RL\.INFO user:1 The next call is allowed in 1 s\.[^]*kind\s+bucket[^]*full_in\s+5000/,
    );
    assert.match(await text(page, "#clock"), /stopped at 0 s/);
    await step(page, "1s");
    await page.getByRole("button", { name: "Call once" }).click();
    assert.deepEqual(await figures(page), [[6, 5, 5]]);
    // An earlier reply, by keyboard.
    await page.locator("#log").getByRole("button", { name: "1", exact: true }).press("Enter");
    await page.locator("#reply", { hasText: "Call 1:" }).waitFor();
    assert.match(await text(page, "#reply"), /remaining\s+4/);
  },

  async "a replay begins at the start, and is drawn"(page) {
    await type(page, "RL.WINDOW calls:1 5 3s");
    for (let turn = 0; turn < 2; turn += 1) {
      await replay(page);
      await said(page, "20 calls: 10 admitted, 10 denied.");
      assert.deepEqual(await figures(page), [[10, 1, 5]]);
      assert.match(await text(page, "#clock"), /stopped at 3\.8 s/);
    }
    const marks = (name) => page.locator(`#lanes path.${name}`).getAttribute("d");
    assert.equal((await marks("dot")).match(/M/g).length, 10);
    assert.equal((await marks("denied")).match(/M/g).length, 10);
    // A click on the time line chooses a call.
    const box = await page.getByRole("img", { name: "calls on calls:1" }).boundingBox();
    await page.mouse.click(box.x + 12, box.y + 60);
    await page.locator("#reply", { hasText: "Call 1:" }).waitFor();
  },

  async "the commands for a wish are compared on the same calls"(page) {
    await page.getByLabel("and at once").fill("20");
    await page.getByRole("button", { name: "Compare" }).click();
    await said(page, "Each command gets the same calls, at twice the limit.");
    const names = (await texts(page, "#lanes code")).map((name) => name.split(" ").slice(0, 2).join(" "));
    assert.deepEqual(
      names,
      ["RL.THROTTLE bucket", "RL.WINDOW sliding", "RL.WINDOW calendar", "RL.WINDOW first"].concat(
        Array(2).fill("RL.ALL 2"),
      ),
    );
    // Of 400: how many were admitted, how many at once, and in any minute.
    assert.deepEqual(await figures(page), [
      [210, 20, 110],
      [200, 20, 100],
      [300, 20, 200],
      [200, 20, 100],
      ...Array(2).fill([200, 20, 100]),
    ]);
    assert.match(
      await text(page, "#lanes"),
      /RL\.WINDOW calendar 100 1min FIXED\s+At most 100 in each 1min of the calendar; twice that/,
    );
    await page.getByLabel("Allow").fill("5");
    await page.getByLabel("calls a").selectOption("second");
    await page.getByLabel("Allow").press("Enter");
    assert.deepEqual(
      (await figures(page)).map(([, once]) => once),
      [20, 5, 5, 5],
    );
    await page.getByLabel("Allow").fill("many");
    await page.getByRole("button", { name: "Compare" }).click();
    await said(page, "Compare whole numbers from 1 to 5000.");
  },

  async "calls of a list are made at its times, by their own commands"(page) {
    await page.locator("#log-times summary").click();
    await type(page, "RL.WINDOW list:1 2 10");
    await page
      .locator("#times")
      .fill("0 500ms, 1s\n2026-11-22T12:00:00Z 2026-11-22T12:00:10.5Z\n12s RL.THROTTLE list:2 0 1 1s 2\n");
    await replay(page);
    await said(page, "6 calls: 3 admitted, 3 denied");
    const cells = await texts(page, "#log tbody tr");
    assert.deepEqual(
      cells.reverse().map((row) => row.split("\t").slice(1, 3).concat(row.split("\t")[4]).join(" ")),
      [
        "0 s admitted RL.WINDOW list:1 2 10",
        "0 s admitted RL.WINDOW list:1 2 10",
        "0.5 s denied RL.WINDOW list:1 2 10",
        "1 s denied RL.WINDOW list:1 2 10",
        "10.5 s admitted RL.WINDOW list:1 2 10",
        "12 s denied RL.THROTTLE list:2 0 1 1s 2",
      ],
    );
    // They are kept where commands are compared.
    await page.getByRole("button", { name: "Compare" }).click();
    await said(page, /^\d+ calls/);
    assert.match(await text(page, ".figures >> nth=0"), /of 5 admitted/);
    await page.locator("#times").fill("soon");
    await replay(page);
    await said(page, "Line 1 does not begin with a time: soon");
  },

  async "calls wait in line, and book ahead"(page) {
    await startOver(page);
    await type(page, "RL.THROTTLE mail 0 2 1s BLOCK 2s");
    await call(page);
    await call(page);
    await said(page, "It waits in line");
    assert.deepEqual(await verdicts(page), ["admitted", "waits ..."]);
    assert.match(await text(page, "#holds"), /waiting\s+1/);
    await step(page, "1");
    await page.locator("#log", { hasText: "admitted after 0.5 s" }).waitFor();
    await type(page, "RL.THROTTLE crawl 0 2 1s AHEAD 2s MS");
    for (const wanted of ["Admitted; 0 of 1 remain.", "Admitted, to go on in 0.5 s; 0 of 1 remain."]) {
      await call(page);
      await said(page, wanted);
    }
    assert.match(await text(page, "#reply"), /wait\s+500\s+ms after which/);
  },

  async "the clock plays, at a speed, with and without motion"(page) {
    for (const reducedMotion of ["no-preference", "reduce"]) {
      await page.emulateMedia({ reducedMotion });
      await page.locator("#every").fill("1s");
      await page.locator("#speed").selectOption("60");
      await page.getByRole("button", { name: "Watch" }).click();
      await page.locator("#clock", { hasText: "The clock runs" }).waitFor();
      await said(page, "20 calls: 20 admitted, 0 denied");
      await page.getByRole("button", { name: "Play", exact: true }).click();
      await page.locator("#clock", { hasText: /runs: [1-9]:\d\d/ }).waitFor();
      await page.getByRole("button", { name: "Pause" }).click();
      const stopped = await text(page, "#clock");
      await page.waitForTimeout(200);
      assert.equal(await text(page, "#clock"), stopped);
    }
  },

  async "reservations are settled, and several limits are one call"(page) {
    await startOver(page);
    for (const id of ["one", "two"]) {
      await type(page, `RL.ACQUIRE report 2 1min ID ${id}`);
      await call(page);
    }
    await type(page, "RL.APPLY report one", "RL.RELEASE report two");
    await call(page);
    await page.locator("#holds", { hasText: "1 of 2 remain" }).waitFor();
    assert.match(await text(page, "#holds"), /events\s+1[^]*held\s+0/);
    await type(page, "RL.ALL 2 {u}:plan {u}:credits WINDOW 1 1h ELSE THROTTLE 4 1 1min");
    await call(page);
    await call(page);
    assert.match(await text(page, "#reply"), /clause\s+2[^]*answer 1\s+1 1 0 3600 3600[^]*answer 2\s+0 5 4 -1 60/);
    // Of clauses that ELSE joins one takes.
    assert.deepEqual(
      (await figures(page)).slice(1).map(([admitted]) => admitted),
      [1, 1],
    );
  },

  async "what is wrong is said before a call and after it, with the syntax of the command"(page) {
    await startOver(page);
    await type(page, "RL.WINDOW user:1 5 1m");
    const wrong = /period has the ambiguous unit m/;
    assert.match(await text(page, "#understood.wrong"), wrong);
    assert.equal(await page.locator("#command").getAttribute("aria-invalid"), "true");
    await call(page);
    await said(page, wrong);
    assert.deepEqual(await verdicts(page), ["error"]);
    await replay(page);
    await said(page, wrong);
    await type(page, 'RL.WINDOW "user 1 5 60');
    assert.match(await text(page, "#understood.wrong"), /A quote is left open/);
    const commands = readFileSync(join(repository, "docs/commands.md"), "utf8").match(/(?<=^## )RL\.\w+/gm);
    assert.ok(commands.length > 10);
    for (const command of commands) {
      // Too few or too many.
      await type(page, `${command.toLowerCase()}${/POLICIES|TOP/.test(command) ? " 1" : ""}`);
      const now = await text(page, "#understood");
      assert.match(now, /ERR (wrong number|syntax)/, command);
      assert.match(now, new RegExp(`\\n${command}\\b`), command);
    }
    await type(page, "RL.WINDOWS user:1 5 60");
    assert.match(await text(page, "#understood"), /unknown command[^]*The commands are RL\.THROTTLE, /);
  },

  async "the address keeps commands and settings, and is replayed"(page, address) {
    await page.getByText("Settings of this server").click();
    await page.locator("#policies").fill("free WINDOW 2 1min");
    await page.locator("#policies").blur();
    await type(page, "RL.WINDOW user:1 @free");
    await page.locator("#count").fill("3");
    await replay(page);
    await said(page, "3 calls: 2 admitted, 1 denied");
    const shared = page.url();
    const other = await open(shared);
    await said(other, "3 calls: 2 admitted, 1 denied");
    // The same if it is pasted into an open page.
    await other.goto(address);
    await said(other, "20 calls");
    await other.goto(shared);
    await said(other, "3 calls: 2 admitted, 1 denied");
    await other.close();
    await page.locator("#policies").fill("free nonsense");
    await page.locator("#policies").blur();
    assert.notEqual(await text(page, "#settings-wrong"), "");
    assert.ok(page.url().startsWith(address));
    await page.locator("#policies").fill("");
    await page.locator("#start").fill("soon");
    await page.locator("#start").blur();
    assert.match(await text(page, "#settings-wrong"), /The clock starts at a date/);
  },

  async "every example is replayed without an error, and several limits are drawn below each other"(page) {
    const names = (await page.locator("#examples option").allTextContents()).slice(1);
    assert.ok(names.length >= 10);
    for (const name of names) {
      await page.locator("#examples").selectOption({ label: name });
      assert.equal(await page.locator("#understood.wrong").count(), 0, name);
      await said(page, /^\d+ calls: [1-9]\d* admitted.*, [1-9]\d* denied/);
      assert.doesNotMatch(await text(page, "#said"), /error|waiting/, name);
      assert.equal(await page.locator("#lanes svg").count(), /limits|plan/.test(name) ? 2 : 1, name);
      if (pictures) await page.screenshot({ path: join(pictures, `${name.replace(/\W+/g, "-")}.png`), fullPage: true });
    }
    await startOver(page);
    assert.match(await text(page, "#lanes"), /No calls yet/);
    assert.equal(await page.locator("#log tbody tr, #key option").count(), 0);
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
  },

  async "nothing sticks out, however narrow the window is"(page) {
    for (const summary of await page.locator("summary").all()) await summary.click();
    for (const button of ["Replay", "Compare"]) {
      await page.getByRole("button", { name: button }).click();
      await type(page, "RL.WINDOW a");
      for (const width of [1280, 768, 390, 320]) {
        await page.setViewportSize({ width, height: 800 });
        await drawn(page);
        assert.deepEqual(await page.evaluate(sticksOut), [], `${width} pixels`);
      }
    }
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
