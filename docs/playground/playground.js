/**
 * The playground runs commands on keys in memory, with a clock of its own, and draws the calls on a time line. The commands
 * are executed by engine.wasm, which MemoryLimiter of the TypeScript client uses too. Times are microseconds, as in the
 * engine.
 */
"use strict";

// ---- The engine ----

/** The result of the engine's call() for a reply that is not an array of integers. For an array it is the length. */
const JSON_REPLY = -1;

/** An error reply. */
class ReplyError {
  constructor(text) {
    this.text = text;
  }
}

/** A call that waits. */
class Ticket {
  constructor(number) {
    this.number = number;
  }
}

/** Replaces the errors in a JSON reply by ReplyErrors. */
function revive(value) {
  if (Array.isArray(value)) return value.map(revive);
  return typeof value === "object" && value !== null ? new ReplyError(value.error) : value;
}

/** A server in memory. */
class Engine {
  #exports;

  constructor(module) {
    this.#exports = new WebAssembly.Instance(module, {}).exports;
    this.#exports.start(crypto.getRandomValues(new BigUint64Array(1))[0], 1);
  }

  /** Returns the reply to a command: a number, a string, null, an array of them, a ReplyError, or a Ticket if it waits. */
  call(words, nowUs) {
    const encoded = words.map((word) => new TextEncoder().encode(word));
    const length = encoded.reduce((sum, word) => sum + 4 + word.length, 0);
    const begin = this.#exports.input(length);
    const memory = new DataView(this.#exports.memory.buffer);
    let at = begin;
    for (const word of encoded) {
      memory.setUint32(at, word.length, true);
      new Uint8Array(memory.buffer, at + 4, word.length).set(word);
      at += 4 + word.length;
    }
    const count = this.#exports.call(length, nowUs);
    if (count === JSON_REPLY) return revive(this.#json());
    const numbers = new Float64Array(this.#exports.memory.buffer, this.#exports.numbers(), Math.max(count, 1));
    return count < 0 ? new Ticket(numbers[0]) : [...numbers.subarray(0, count)];
  }

  /** Returns the tickets of the calls whose wait is over, with their replies. */
  takeEnded(nowUs) {
    return this.#exports.take_ended(nowUs) === 0 ? [] : revive(this.#json());
  }

  /** Returns when to call takeEnded next; Infinity while no call waits. */
  nextUs() {
    const next = this.#exports.next_us();
    return next < 0 ? Infinity : next;
  }

  #json() {
    const bytes = new Uint8Array(this.#exports.memory.buffer, this.#exports.output(), this.#exports.output_len());
    return JSON.parse(new TextDecoder().decode(bytes));
  }
}

async function loadEngine() {
  const answer = await fetch("engine.wasm").catch(() => ({ ok: false }));
  if (answer.ok) return WebAssembly.compile(await answer.arrayBuffer());
  throw new Error(
    "The engine did not load. Run make playground in the repository, which builds it, and open the address that it prints. A page that is opened as a file cannot load it.",
  );
}

// ---- Words and times ----

/** Splits a line into words as redis-cli does: at blanks outside quotes. Returns null if a quote is left open. */
function split(line) {
  const words = [];
  const pattern = /"((?:[^"\\]|\\.)*)"(?=\s|$)|'([^']*)'(?=\s|$)|([^\s"']\S*)|(\S)/g;
  for (const [, double, single, plain, open] of line.matchAll(pattern)) {
    if (open !== undefined) return null;
    words.push(plain ?? single ?? double.replace(/\\(.)/g, "$1"));
  }
  return words;
}

const UNITS = { us: 1, ms: 1e3, s: 1e6, min: 6e7, h: 3.6e9, d: 8.64e10, w: 6.048e11 };

/** Returns the microseconds of a duration such as 200ms or 1.5s, or of seconds without a unit; undefined for other texts. */
function duration(text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w)?$/i.exec(text.trim()) ?? [];
  return number === undefined ? undefined : Math.round(Number(number) * UNITS[unit?.toLowerCase() ?? "s"]);
}

/** Returns the Unix microseconds of a time in a log, in ISO 8601 or in seconds since 1970; undefined for other texts. */
function moment(text) {
  if (/^\d{9,}(\.\d+)?$/.test(text)) return Math.round(Number(text) * 1e6);
  const ms = /^\d{4}-\d\d-\d\dT/.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(ms) ? undefined : ms * 1e3;
}

/** The maximum number of calls in one replay. */
const MAX_CALLS = 20_000;

/** Parses a list of times and commands. Returns when each call is made, after the first, and its command, if there is one. */
function parseTimes(text) {
  const calls = [];
  for (const [number, line] of text.split("\n").entries()) {
    let rest = line.trim();
    const times = [];
    for (;;) {
      const [all, word] = /^([^\s,;]+)[\s,;]*/.exec(rest) ?? [];
      const date = word === undefined ? undefined : moment(word);
      const after = date === undefined && word !== undefined ? duration(word) : undefined;
      if (date === undefined && after === undefined) break;
      times.push({ date, after });
      rest = rest.slice(all.length);
    }
    if (times.length === 0 && rest !== "") throw new Error(`Line ${number + 1} does not begin with a time: ${rest}`);
    calls.push(...times.map((time) => ({ ...time, command: rest || undefined })));
  }
  if (calls.length === 0) throw new Error("There is no time in the list.");
  if (calls.length > MAX_CALLS) throw new Error(`${calls.length} calls are more than ${MAX_CALLS}.`);
  const first = calls.reduce((least, { date = Infinity }) => Math.min(least, date), Infinity);
  return calls.map(({ date, after, command }) => ({ after: date === undefined ? after : date - first, command }));
}

/** Returns a duration as text, to the millisecond. */
function shown(us) {
  const ms = Math.round(us / 1e3);
  const [s, min, h, d] = [ms / 1e3, ms / 6e4, ms / 3.6e6, ms / 8.64e7];
  if (s < 60) return `${Number(s.toFixed(3))} s`;
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const seconds = `${two(s % 60)}${ms % 1000 ? `.${String(ms % 1000).padStart(3, "0")}` : ""}`;
  if (h < 1) return `${Math.floor(min)}:${seconds}`;
  const clock = `${d < 1 ? Math.floor(h) : two(h % 24)}:${two(min % 60)}:${seconds}`;
  return d < 1 ? clock : `${Math.floor(d)} d ${clock}`;
}

// ---- What a call is about ----

const TAKES = new Set(["RL.THROTTLE", "RL.WINDOW", "RL.ACQUIRE", "RL.ALL", "CL.THROTTLE"]);
const LOOKS = new Set(["RL.THROTTLE_RO", "RL.WINDOW_RO", "RL.ACQUIRE_RO", "RL.ALL_RO"]);
const WITH_VALUE = new Set(["LEAVE", "BLOCK", "AHEAD", "BAN", "LEASE", "ID", "BUCKETS", "FROM", "TZ"]);
/** The options that belong to the window. */
const WINDOW_OPTIONS = new Set(["BUCKETS", "FIXED", "FROM", "TZ"]);
const CLAUSES = new Set(["THROTTLE", "WINDOW", "ACQUIRE"]);

/** Returns the options among words, each with its value, or null if the value is missing. */
function optionsOf(words) {
  const options = new Map();
  for (let at = 0; at < words.length; at += 1) {
    const name = words[at].toUpperCase();
    const hasValue = WITH_VALUE.has(name);
    options.set(name, hasValue ? (words[at + 1] ?? null) : true);
    if (hasValue) at += 1;
  }
  return options;
}

/** Returns the number of words of a limit, which follows the key. */
const limitLength = (command, first) => (first?.startsWith("@") ? 1 : command.includes("THROTTLE") ? 3 : 2);

/** Returns the read-only command that shows what remains of a limit. `words` are those after the key. */
function lookWords(command, key, words) {
  const length = limitLength(command, words[0]);
  if (words.length < length) return undefined;
  const look = [`RL.${command}_RO`, key, ...words.slice(0, length)];
  for (const [name, value] of optionsOf(words.slice(length))) {
    if (WINDOW_OPTIONS.has(name)) look.push(name, ...(typeof value === "string" ? [value] : []));
  }
  return [...look, "MS"];
}

/** Returns what a command is about: its keys, whether it takes, how to look at its limits, and whether it has MS. */
function aboutCall(words) {
  const command = words[0].toUpperCase();
  const about = { command, keys: [], looks: [], takes: TAKES.has(command), isMs: false, addMs: false };
  if (command === "RL.ALL" || command === "RL.ALL_RO") {
    const count = /^\d{1,2}$/.test(words[1] ?? "") ? Number(words[1]) : 0;
    about.keys = words.slice(2, 2 + count);
    const rest = words.slice(2 + count);
    about.isMs = rest.at(-1)?.toUpperCase() === "MS";
    const clauses = [];
    for (let at = 0; at < rest.length - (about.isMs ? 1 : 0); at += 1) {
      const word = rest[at].toUpperCase();
      if (CLAUSES.has(word)) clauses.push([word]);
      else if (word !== "ELSE") clauses.at(-1)?.push(rest[at]);
      if (WITH_VALUE.has(word) && at + 1 < rest.length) clauses.at(-1)?.push(rest[(at += 1)]);
    }
    about.looks = about.keys.map((key, at) => clauses[at] && lookWords(clauses[at][0], key, clauses[at].slice(1)));
    const complete = clauses.every((clause) => ![...optionsOf(clause.slice(1)).values()].includes(null));
    about.addMs = !about.isMs && complete && count > 0;
  } else if (TAKES.has(command) || LOOKS.has(command)) {
    about.keys = words.slice(1, 2);
    const limit = words.slice(2);
    const kind = command.replace(/^(RL|CL)\./, "").replace(/_RO$/, "");
    about.looks = about.keys.map((key) => lookWords(kind, key, limit));
    const length = limitLength(command, limit[0]);
    const options = optionsOf(limit.slice(length));
    about.options = options;
    about.isMs = options.has("MS");
    about.addMs =
      !about.isMs && ![...options.values()].includes(null) && limit.length >= length && command !== "CL.THROTTLE";
    if (!limit[0]?.startsWith("@")) about.period = duration(limit[length - 1] ?? "");
  } else if (["RL.APPLY", "RL.RELEASE", "RL.RENEW", "RL.HELD", "RL.INFO"].includes(command)) {
    about.keys = words.slice(1, 2);
  }
  return about;
}

// ---- A session: a server, its clock, the calls ----

/** A key with its calls, as drawn on the time line. */
class Lane {
  constructor(key) {
    this.key = key;
    /** The commands on the key, as they were typed. */
    this.commands = new Set();
    this.calls = [];
    /** The command that shows what remains. */
    this.look = undefined;
    /** What remained at which time: [time, remaining, limit]. */
    this.samples = [];
  }

  sample(at, remaining, limit) {
    const { samples } = this;
    const same = (one) => one !== undefined && one[1] === remaining && one[2] === limit;
    if (same(samples.at(-1)) && same(samples.at(-2))) samples.pop();
    samples.push([at, remaining, limit]);
    // Half of them are enough to draw.
    if (samples.length > 8_000) this.samples = samples.filter((_, index) => index % 2 === 0);
  }
}

class Session {
  constructor(module, startUs, settings) {
    this.engine = new Engine(module);
    this.startUs = startUs;
    this.nowUs = startUs;
    this.calls = [];
    this.lanes = new Map();
    /** The calls to make later, by time. */
    this.planned = [];
    this.waiting = new Map();
    for (const [name, value] of settings) {
      const reply = this.engine.call(["CONFIG", "SET", `ratelimit.${name}`, value], startUs);
      if (reply instanceof ReplyError) throw new Error(reply.text.replace(/^ERR /, ""));
    }
  }

  /** Adds calls to make later. */
  plan(calls) {
    this.planned = [...this.planned, ...calls].sort((one, other) => one.at - other.at);
  }

  /** Advances the clock, with everything that happens until then. */
  advance(untilUs) {
    const gap = Math.max(1_000, (untilUs - this.nowUs) / 400);
    // Ends the loop if the engine says that something is due, but nothing happens.
    let idle = 0;
    for (;;) {
      const dueUs = idle < 3 ? this.engine.nextUs() : Infinity;
      const plannedUs = this.planned[0]?.at ?? Infinity;
      const next = Math.max(this.nowUs, Math.min(dueUs, plannedUs, untilUs));
      idle = next > this.nowUs ? 0 : idle + 1;
      for (let at = this.nowUs + gap; at < next; at += gap) this.#sample(at);
      this.nowUs = next;
      if (dueUs <= next) this.#settle();
      if (plannedUs <= next) {
        const { words, text } = this.planned.shift();
        this.make(words, text);
        idle = 0;
      } else if (next >= untilUs && (dueUs > next || idle >= 3)) {
        break;
      }
    }
    this.#sample(this.nowUs);
  }

  /** Returns the time of the last planned call. */
  endUs() {
    return this.planned.at(-1)?.at ?? this.nowUs;
  }

  /** Makes a call now. */
  make(words, text) {
    const about = aboutCall(words);
    const call = { number: this.calls.length + 1, at: this.nowUs, endsAt: this.nowUs, text, words, about };
    // The drawing needs milliseconds. An error changes nothing, so the command can be tried again as it was typed.
    let reply = about.addMs ? this.engine.call([...words, "MS"], this.nowUs) : undefined;
    if (reply === undefined || reply instanceof ReplyError) {
      reply = this.engine.call(words, this.nowUs);
      if (reply instanceof ReplyError) call.failed = true;
      about.inMs = about.isMs;
    } else {
      about.inMs = true;
    }
    this.calls.push(call);
    if (!call.failed) this.#enter(call);
    if (reply instanceof Ticket) {
      call.verdict = "waiting";
      this.waiting.set(reply.number, call);
    } else {
      this.#finish(call, reply);
    }
    this.#settle();
    this.#sample(this.nowUs);
    return call;
  }

  /** Adds a call that takes to the lanes of its keys. */
  #enter(call) {
    const { about } = call;
    if (!about.takes) return;
    for (const [at, key] of about.keys.entries()) {
      if (!this.lanes.has(key)) this.lanes.set(key, new Lane(key));
      const lane = this.lanes.get(key);
      const isNew = lane.samples.length === 0;
      lane.look = about.looks[at] ?? lane.look;
      lane.commands.add(call.text);
      lane.calls.push({ call, at });
      if (isNew) this.#sampleLane(lane, this.nowUs, true);
    }
  }

  #finish(call, reply) {
    call.reply = reply;
    call.endsAt = this.nowUs;
    const { about } = call;
    if (reply instanceof ReplyError) {
      call.verdict = "error";
    } else if (about.takes) {
      const [limited, , , , , sixth] = reply;
      const waitsUs = about.options?.has("AHEAD") && limited === 0 ? sixth * (about.inMs ? 1e3 : 1e6) : 0;
      call.endsAt += waitsUs;
      call.verdict = limited === 0 ? "admitted" : "denied";
    } else {
      call.verdict = LOOKS.has(about.command) ? (reply[0] === 0 ? "would be admitted" : "would be denied") : "";
    }
  }

  #settle() {
    for (const [ticket, reply] of this.engine.takeEnded(this.nowUs)) {
      const call = this.waiting.get(ticket);
      this.waiting.delete(ticket);
      if (call !== undefined) this.#finish(call, reply);
    }
  }

  #sample(at) {
    for (const lane of this.lanes.values()) this.#sampleLane(lane, at, false);
  }

  /** Records what remains of a limit; `before` its first call, that is the whole limit. */
  #sampleLane(lane, at, before) {
    const reply = lane.look && this.engine.call(lane.look, at);
    if (!Array.isArray(reply)) return;
    lane.sample(at, before ? reply[1] : reply[2], reply[1]);
  }
}

// ---- Replies by name ----

const MEANINGS = {
  limit: "the largest quantity that is available at once",
  remaining: "the quantity that is left after this call",
  reset_after: "until the bucket is full or the window is empty",
  granted: "the quantity that was taken",
  reservations: "the number of reservations in the key whose lease has not ended",
  clause: "the clause that decides",
  kind: "a bucket (RL.THROTTLE), or a window with events and reservations",
  full_in: "until the bucket is full",
  debt: "the debt of FORCE or AHEAD, as it was last written",
  events: "the quantity that is counted in the key",
  denied: "the part of it that denied calls counted (COUNTDENIED)",
  entries: "the number of entries that store it",
  oldest: "the age of the oldest event",
  newest: "the age of the newest event",
  held: "the quantity that is reserved",
  ban: "until the ban ends",
  waiting: "the number of calls that wait in the key's line",
  ttl: "until the key expires",
};

const LIMITED = ["allowed", "denied", "denied because others hold the capacity, and may give it back"];

/** Returns the elements of a reply, each with its name, value and meaning. */
function elementsOf({ about, words, reply }) {
  if (reply instanceof ReplyError) return [["error", reply.text, ""]];
  if (!(about.takes || LOOKS.has(about.command)) || !Array.isArray(reply)) return otherElements(words, reply);
  return elementsOfTake(reply, about);
}

function elementsOfTake(reply, about) {
  const unit = about.isMs ? "ms" : "s";
  // The engine was asked for milliseconds. The server rounds seconds up.
  const time = (value) => (value < 0 || about.isMs || !about.inMs ? value : Math.ceil(value / 1000));
  const [limited, limit, remaining, retry, reset, ...more] = reply;
  const never = limited === 0 ? "allowed" : "it can never be allowed";
  const rows = [
    ["limited", limited, LIMITED[limited]],
    ["limit", limit, MEANINGS.limit],
    ["remaining", remaining, MEANINGS.remaining],
    ["retry_after", time(retry), retry < 0 ? never : `${unit} until this call is allowed, if no others take anything`],
    ["reset_after", time(reset), `${unit} ${MEANINGS.reset_after}`],
  ];
  if (about.command.startsWith("RL.ALL") && Array.isArray(more[1])) {
    rows.push(["clause", more[0], MEANINGS.clause]);
    for (const [at, answer] of more[1].entries()) {
      const parts = elementsOfTake(answer, { ...about, command: "clause" }).map(
        ([name, value]) => `${name} ${value ?? "nil"}`,
      );
      rows.push([`answers ${at + 1}`, parts.join(", "), `the answer for ${about.keys[at]}`]);
    }
    return rows;
  }
  const isReserving = about.command.includes("ACQUIRE") || (about.command === "clause" && more.length === 1);
  if (isReserving && more.length > 0) {
    rows.push(["id", more[0], "by which the reservation is settled; nil if nothing was reserved"]);
    if (more.length > 1)
      rows.push(["granted", more[1], MEANINGS.granted], ["reservations", more[2], MEANINGS.reservations]);
  } else if (more.length > 0 && about.options?.has("ATMOST")) {
    rows.push(["granted", more[0], MEANINGS.granted]);
  } else if (more.length > 0) {
    rows.push(["wait", time(more[0]), more[0] < 0 ? "denied" : `${unit} after which the caller may go on`]);
  }
  return rows;
}

/** The same for commands that do not ask a limit. */
function otherElements(words, reply) {
  const command = words[0].toUpperCase();
  const text = (value) => {
    if (value instanceof ReplyError) return value.text;
    return Array.isArray(value) ? `[${value.map(text).join(", ")}]` : String(value ?? "nil");
  };
  if (command === "RL.INFO" && Array.isArray(reply)) return infoRows(reply);
  const named = {
    "RL.HELD": ["id", "quantity", "ms left"],
    "RL.TOP": ["key", "db", "denials", "over"],
    "RL.POLICIES": ["name", "definition", "allowed", "denied", "shadow_denied"],
  }[command];
  if (named && Array.isArray(reply)) {
    if (reply.length === 0) return [["reply", "empty", "there is none"]];
    return reply.map((row, at) => [
      String(at + 1),
      row.map((value, of) => `${named[of]} ${text(value)}`).join(", "),
      "",
    ]);
  }
  const done = {
    "RL.APPLY": "1: it counts now; 0: it is not held",
    "RL.RELEASE": "how many of them were held",
    "RL.RENEW": "1: its lease starts over; 0: it is not held",
  };
  return [["reply", text(reply), done[command] ?? ""]];
}

function infoRows(reply) {
  const rows = [];
  for (let at = 0; at < reply.length; at += 2) {
    const [name, value] = [reply[at], reply[at + 1]];
    const isTime = ["full_in", "debt", "oldest", "newest", "ban", "ttl"].includes(name);
    rows.push([name, value, isTime ? `ms: ${MEANINGS[name]}` : (MEANINGS[name] ?? "")]);
  }
  return rows;
}

// ---- The page ----

const byId = (id) => document.getElementById(id);

/** Creates an element with properties and children. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A cell of a table. */
const cell = (className, ...children) => element("td", { className }, ...children);

/** A table of names, values and meanings. */
function table(caption, rows) {
  const line = ([name, value, meaning]) => {
    const heading = element("th", { scope: "row" }, element("code", {}, name));
    return element("tr", {}, heading, cell("mono", String(value ?? "nil")), cell("", meaning));
  };
  return element("table", {}, element("caption", {}, caption), element("tbody", {}, ...rows.map(line)));
}

const EXAMPLES = [
  ["a steady rate with bursts", "RL.THROTTLE user:1 4 1 1s", "200ms", 40],
  ["at most 5 in any 3 seconds", "RL.WINDOW calls:1 5 3s", "200ms", 40],
  ["the same, in groups (BUCKETS)", "RL.WINDOW buckets:1 5 3s BUCKETS 3", "200ms", 40],
  ["windows of the calendar (FIXED)", "RL.WINDOW quota:1 5 3s FIXED", "200ms", 40],
  ["a window that begins with the first call", "RL.WINDOW first:1 5 3s FIXED FROM first", "200ms", 40],
  ["whoever hammers stays out", "RL.WINDOW login:ann 3 2s COUNTDENIED", "400ms", 20],
  ["a ban", "RL.WINDOW login:bob 3 2s 1 BAN 4s", "400ms", 30],
  ["wait in line", "RL.THROTTLE mail 0 2 1s BLOCK 3s", "250ms", 20],
  ["book ahead", "RL.THROTTLE crawl 0 2 1s AHEAD 3s", "250ms", 20],
  ["at most 3 at the same time", "RL.ACQUIRE report 3 0 LEASE 2s", "300ms", 20],
  ["two limits at once", "RL.ALL 2 {u}:second {u}:ten WINDOW 2 1s WINDOW 8 10s", "200ms", 60],
  ["the plan, else the credits", "RL.ALL 2 {u}:plan {u}:credits WINDOW 3 2s ELSE THROTTLE 5 1 2s", "200ms", 40],
  [
    "compare four",
    "RL.THROTTLE a 4 5 3s\nRL.WINDOW b 5 3s\nRL.WINDOW c 5 3s FIXED\nRL.WINDOW d 5 3s COUNTDENIED",
    "200ms",
    60,
  ],
];

/** The maximum number of lines of the log. */
const MAX_LINES = 300;

class Page {
  #module;
  #session;
  #chosen;
  #playing = undefined;
  #stopAtUs = Infinity;
  #isDrawing = false;
  #logged = 0;
  /** The key that the section Why explains. */
  #key;

  constructor(module) {
    this.#module = module;
    this.#wire();
    this.#guarded(() => this.#begin());
    // The settings in the address may be wrong.
    this.#session ??= new Session(module, Date.now() * 1000, []);
    this.#understand();
    this.#refresh();
    new ResizeObserver(() => this.#draw()).observe(byId("chart"));
  }

  // -- What is typed

  #startUs() {
    const given = byId("start").value.trim();
    if (given === "") {
      const minute = Math.floor(Date.now() / 60_000) * 60_000;
      byId("start").value = `${new Date(minute).toISOString().slice(0, 19)}Z`;
      return minute * 1000;
    }
    const ms = Date.parse(/[zZ]|[+-]\d\d:\d\d$/.test(given) ? given : `${given}Z`);
    if (!(ms >= 0 && ms < 9e12)) throw new Error("The clock starts at a date such as 2026-11-22T12:00:00Z.");
    return ms * 1000;
  }

  #settings() {
    const settings = [];
    for (const name of ["timezone", "policies"]) {
      const value = byId(name).value.trim();
      if (value !== "") settings.push([name, value]);
    }
    return settings;
  }

  /** Returns the words and the text of each line that is typed. */
  #typed(text = byId("command").value) {
    const lines = text
      .split("\n")
      .map((line) => line.trim())
      .filter((line) => line !== "");
    if (lines.length === 0) throw new Error("Type a command, such as RL.WINDOW user:1 5 60.");
    return lines.map((line) => {
      const words = split(line);
      if (words === null) throw new Error(`A quote is left open: ${line}`);
      return { words, text: line };
    });
  }

  /** Shows what the typed commands would do on a new key, or their error. */
  #understand() {
    const said = byId("understood");
    const command = byId("command");
    command.rows = Math.min(8, command.value.split("\n").length);
    let wrong;
    let right = "";
    try {
      const calls = this.#typed();
      // They run on another server in memory, so that nothing is taken.
      const scratch = new Session(this.#module, this.#session.nowUs, this.#settings());
      for (const { words, text } of calls) {
        const reply = scratch.make(words, text).reply;
        if (reply instanceof ReplyError) {
          wrong = (calls.length > 1 ? `${text}: ` : "") + reply.text;
          break;
        }
      }
      const [first] = scratch.calls;
      if (wrong === undefined && first.about.takes && Array.isArray(first.reply)) {
        const [limited, limit, remaining] = first.reply;
        right = `On a new key: ${limited === 0 ? "allowed" : "denied"}, ${remaining} of ${limit} remain.`;
        if (calls.length > 1)
          right = `${calls.length} calls. ${right.replace("On a new key", "The first, on a new key")}`;
      }
    } catch (error) {
      wrong = error.message;
    }
    said.textContent = wrong ?? right;
    said.classList.toggle("wrong", wrong !== undefined);
    command.setAttribute("aria-invalid", String(wrong !== undefined));
  }

  // -- What is done

  #wire() {
    const on = (id, event, what) => byId(id).addEventListener(event, (happened) => this.#guarded(() => what(happened)));
    on("command", "input", () => this.#understand());
    on("command", "keydown", (key) => {
      if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
      key.preventDefault();
      this.#call();
    });
    on("calls", "submit", (submitted) => {
      submitted.preventDefault();
      this.#call();
    });
    on("forget", "click", () => this.#startOver());
    on("apply", "click", () => this.#startOver());
    on("play", "click", () => this.#play(this.#playing === undefined));
    on("step", "click", () => this.#step(byId("step-by").value));
    for (const button of document.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => this.#guarded(() => this.#step(button.dataset.step)));
    }
    on("at-once", "click", () => this.#replay(false));
    on("slowly", "click", () => this.#replay(true));
    on("times", "input", () => (byId("at-times").checked = true));
    on("span", "change", () => this.#draw());
    on("key", "change", () => {
      this.#key = byId("key").value;
      this.#why();
    });
    on("chart", "click", (clicked) => this.#chooseAt(clicked));
    on("examples", "change", () => {
      const example = EXAMPLES[Number(byId("examples").value)];
      if (example === undefined) return;
      [, byId("command").value, byId("every").value, byId("count").value] = example;
      document.querySelector("[name=plan][value=every]").checked = true;
      this.#startOver();
    });
    byId("examples").append(...EXAMPLES.map(([name], value) => element("option", { value }, name)));
    for (const id of ["command", "every", "count", "times"]) on(id, "change", () => this.#remember());
  }

  /** Runs an action, and shows its error on the page. */
  #guarded(what) {
    try {
      what();
    } catch (error) {
      this.#say(error.message, true);
    }
  }

  #say(text, isWrong = false) {
    const said = byId("said");
    said.textContent = text;
    said.classList.toggle("wrong", isWrong);
  }

  #call() {
    this.#remember();
    const made = this.#typed().map(({ words, text }) => this.#session.make(words, text));
    this.#choose(made.at(-1), made);
    this.#say(made.map((call) => sentence(call)).join(" "));
    this.#refresh();
  }

  #step(by) {
    const us = duration(by);
    if (us === undefined) throw new Error(`A step is a time such as 200ms or 5s, not ${by || "nothing"}.`);
    this.#session.advance(this.#session.nowUs + us);
    this.#refresh();
  }

  /** Returns the calls to replay. */
  #planned() {
    const { nowUs } = this.#session;
    const typed = () => this.#typed();
    if (byId("at-times").checked) {
      return parseTimes(byId("times").value).flatMap(({ after, command }) =>
        (command === undefined ? typed() : this.#typed(command)).map((call) => ({ ...call, at: nowUs + after })),
      );
    }
    const every = duration(byId("every").value);
    const count = Number(byId("count").value);
    if (every === undefined) throw new Error("Calls come every so often: a time such as 200ms.");
    if (!(Number.isInteger(count) && count >= 1 && count <= MAX_CALLS)) {
      throw new Error(`The number of calls is from 1 to ${MAX_CALLS}.`);
    }
    const calls = typed();
    return Array.from({ length: count }, (_, at) => calls.map((call) => ({ ...call, at: nowUs + at * every }))).flat();
  }

  #replay(isSlow) {
    this.#remember();
    const session = this.#session;
    const planned = this.#planned();
    const before = session.calls.length;
    session.plan(planned);
    if (isSlow) {
      this.#stopAtUs = session.endUs();
      this.#say(`${planned.length} calls are planned.`);
      this.#play(true);
    } else {
      session.advance(session.endUs());
      // Also waits for the calls in line, up to an hour.
      for (let turns = 0; session.waiting.size > 0 && turns < MAX_CALLS; turns += 1) {
        const dueUs = session.engine.nextUs();
        if (dueUs > session.nowUs + UNITS.h) break;
        session.advance(dueUs);
      }
      const made = session.calls.slice(before);
      this.#choose(made.at(-1), made);
      this.#say(counted(made));
    }
    this.#refresh();
  }

  #play(isOn) {
    byId("play").textContent = isOn ? "Pause" : "Play";
    if (this.#playing !== undefined) cancelAnimationFrame(this.#playing);
    this.#playing = undefined;
    if (!isOn) {
      this.#stopAtUs = Infinity;
      return;
    }
    const first = this.#session.calls.length;
    let last = performance.now();
    const turn = (time) => {
      const session = this.#session;
      // A page that was hidden continues where it was.
      const passedUs = Math.min(Math.max(0, time - last), 250) * 1000 * Number(byId("speed").value);
      last = time;
      const before = session.calls.length;
      session.advance(session.nowUs + Math.round(passedUs));
      if (session.calls.length > before) this.#choose(session.calls.at(-1), session.calls.slice(first));
      if (session.nowUs >= this.#stopAtUs && session.waiting.size === 0) {
        this.#say(counted(session.calls));
        this.#play(false);
      } else {
        this.#playing = requestAnimationFrame(turn);
      }
      this.#refresh();
    };
    this.#playing = requestAnimationFrame(turn);
  }

  /** Starts a new server with the typed settings. */
  #begin() {
    try {
      this.#session = new Session(this.#module, this.#startUs(), this.#settings());
      byId("settings-wrong").textContent = "";
    } catch (error) {
      byId("settings-wrong").textContent = error.message;
      throw error;
    }
  }

  #startOver() {
    this.#play(false);
    this.#begin();
    this.#chosen = undefined;
    this.#key = undefined;
    this.#logged = 0;
    byId("log").tBodies[0].replaceChildren();
    this.#say("There are no keys and no calls.");
    this.#understand();
    this.#remember();
    this.#refresh();
  }

  /** Shows the reply to a call, and explains its key, unless one of `calls` is about the key that is explained already. */
  #choose(call, calls = [call]) {
    this.#chosen = call;
    const keys = call?.about.keys.filter((key) => this.#session.lanes.has(key)) ?? [];
    if (keys.length > 0 && !calls.some(({ about }) => about.keys.includes(this.#key))) this.#key = keys[0];
  }

  /** Stores what is typed in the address. */
  #remember() {
    const kept = new URLSearchParams();
    for (const id of ["command", "every", "count", "times", "timezone", "policies"]) {
      const { value, defaultValue } = byId(id);
      if (value !== defaultValue) kept.set(id, value);
    }
    if (byId("at-times").checked) kept.set("plan", "times");
    history.replaceState(null, "", kept.size > 0 ? `#${kept}` : location.pathname + location.search);
  }

  // -- What is shown

  #refresh() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      const { nowUs, startUs } = this.#session;
      byId("now").textContent = shown(nowUs - startUs);
      byId("wall").textContent = `${new Date(nowUs / 1000).toISOString().replace("T", " ").replace("Z", "")} UTC`;
      this.#draw();
      this.#log();
      this.#reply();
      this.#keys();
      this.#why();
    });
  }

  #log() {
    const body = byId("log").tBodies[0];
    const { calls } = this.#session;
    // Writes the lines again whose calls waited.
    for (const row of [...body.querySelectorAll("tr.waits")]) {
      const call = calls[Number(row.dataset.call) - 1];
      if (call?.verdict !== "waiting") row.replaceWith(this.#line(call));
    }
    for (const call of calls.slice(Math.max(this.#logged, calls.length - MAX_LINES))) body.prepend(this.#line(call));
    this.#logged = calls.length;
    while (body.rows.length > MAX_LINES) body.lastElementChild.remove();
    for (const row of body.rows) row.classList.toggle("picked", Number(row.dataset.call) === this.#chosen?.number);
  }

  #line(call) {
    const choose = element("button", { type: "button", title: "Show this reply" }, String(call.number));
    choose.addEventListener("click", () => {
      this.#choose(call);
      this.#refresh();
    });
    const isWaiting = call.verdict === "waiting";
    const parts = isWaiting ? [] : elementsOf(call).map(([name, value]) => `${name} ${value ?? "nil"}`);
    const row = element(
      "tr",
      {},
      cell("", choose),
      cell("number", shown(call.at - this.#session.startUs)),
      cell("words", call.text),
      cell("", element("span", { className: `verdict ${classOf(call)}` }, verdictOf(call))),
      cell("", parts.join(", ")),
    );
    row.dataset.call = call.number;
    if (isWaiting) row.className = "waits";
    return row;
  }

  #reply() {
    const call = this.#chosen;
    if (call === undefined || call.verdict === "waiting") {
      const text = call === undefined ? "The elements of the reply to the chosen call." : "The call waits in line.";
      byId("reply").replaceChildren(element("p", { className: "empty" }, text));
      return;
    }
    const caption = element("span", {}, `Call ${call.number}: `, element("code", {}, call.text));
    byId("reply").replaceChildren(table(caption, elementsOf(call)));
  }

  /** Lists the keys that were called. */
  #keys() {
    const select = byId("key");
    const keys = [...this.#session.lanes.keys()];
    const shownKeys = [...select.options].map((option) => option.value);
    if (keys.join("\n") !== shownKeys.join("\n"))
      select.replaceChildren(...keys.map((key) => element("option", { value: key }, key)));
    select.value = this.#key ?? "";
    select.disabled = keys.length === 0;
  }

  #why() {
    const key = byId("key").value;
    const lane = this.#session.lanes.get(key);
    if (lane === undefined) {
      byId("why").replaceChildren(element("p", { className: "empty" }, "What the key holds now, from RL.INFO."));
      return;
    }
    const { engine, nowUs } = this.#session;
    const children = [];
    const look = lane.look && engine.call(lane.look, nowUs);
    if (Array.isArray(look)) {
      const [limited, limit, remaining, retry] = look;
      const wait = retry < 0 ? "never, as it exceeds the limit" : `in ${shown(retry * 1000)}`;
      const would = limited === 0 ? `admitted: ${remaining} of ${limit} remain` : `denied, and admitted ${wait}`;
      children.push(element("p", {}, `A call of one would be ${would}.`));
    }
    const info = engine.call(["RL.INFO", key], nowUs);
    if (info instanceof ReplyError || info.length === 0) {
      children.push(element("p", { className: "empty" }, info.text ?? "The key does not exist."));
    } else {
      const caption = element("code", {}, `RL.INFO ${key}`);
      children.push(table(caption, infoRows(info)));
    }
    const held = engine.call(["RL.HELD", key], nowUs);
    if (Array.isArray(held) && held.length > 0)
      children.push(element("h3", {}, "Reservations"), this.#heldTable(key, held));
    // Writes only what has changed, so that a button stays while it is pressed.
    const made = element("div", {}, ...children);
    if (byId("why").firstElementChild?.isEqualNode(made)) return;
    const focus = byId("why").contains(document.activeElement)
      ? document.activeElement.getAttribute("aria-label")
      : null;
    byId("why").replaceChildren(made);
    if (focus !== null)
      [...made.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focus)?.focus();
  }

  #heldTable(key, held) {
    const settle = (command, id) => {
      const label = command === "RL.APPLY" ? "Apply" : "Release";
      const button = element("button", { type: "button", "aria-label": `${command} ${id}` }, label);
      button.addEventListener("click", () => {
        this.#choose(this.#session.make([command, key, id], `${command} ${key} ${id}`));
        this.#refresh();
      });
      return button;
    };
    const rows = held.map(([id, quantity, leftMs]) => {
      const buttons = cell("", settle("RL.APPLY", id), " ", settle("RL.RELEASE", id));
      const left = cell("number", shown(leftMs * 1000));
      return element("tr", {}, cell("mono", id), cell("number", String(quantity)), left, buttons);
    });
    const head = ["id", "quantity", "lease left", "settle"].map((name) => element("th", { scope: "col" }, name));
    return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  }

  // -- The time line

  #view() {
    const { startUs, nowUs, planned, calls } = this.#session;
    const lastUs = calls.slice(-200).reduce((latest, call) => Math.max(latest, call.endsAt), nowUs);
    const untilUs = Math.max(lastUs, planned.at(-1)?.at ?? 0);
    const span = duration(byId("span").value);
    if (span === undefined)
      return [startUs, Math.max(untilUs, startUs + 1e6) + Math.max(untilUs - startUs, 1e6) * 0.02];
    const end = Math.max(nowUs, startUs + span);
    return [end - span, end];
  }

  #draw() {
    const chart = byId("chart");
    const session = this.#session;
    const width = Math.max(320, chart.clientWidth || 900);
    const [LEFT, RIGHT, HEAD, ROOM, MARKS, GAP] = [10, 12, 22, 40, 34, 14];
    const laneHeight = HEAD + ROOM + MARKS + GAP;
    const lanes = [...session.lanes.values()];
    const bottom = 6 + Math.max(1, lanes.length) * laneHeight;
    const height = bottom + 26;
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.setAttribute("height", height);
    const [fromUs, toUs] = this.#view();
    const x = (us) => LEFT + ((us - fromUs) / (toUs - fromUs)) * (width - LEFT - RIGHT);
    this.#scale = { fromUs, toUs, left: LEFT, width: width - LEFT - RIGHT, laneHeight, lanes };
    const bands = lanes.map((_, at) => [6 + at * laneHeight + HEAD, 6 + at * laneHeight + HEAD + ROOM + MARKS]);
    const upright = (us) => bands.map(([top, base]) => `M${x(us).toFixed(1)} ${top}V${base}`).join("");
    const parts = [this.#axis(fromUs, toUs, x, bottom, width, upright)];
    for (const [at, lane] of lanes.entries()) {
      parts.push(this.#lane(lane, x, 6 + at * laneHeight, { LEFT, RIGHT, HEAD, ROOM, MARKS, width, fromUs, toUs }));
    }
    if (lanes.length === 0) {
      parts.push(
        drawn("text", { x: width / 2, y: laneHeight / 2, "text-anchor": "middle", class: "soft" }, "No calls yet"),
      );
    }
    parts.push(drawn("path", { class: "nowline", d: upright(session.nowUs) }));
    const summary = lanes.length === 0 ? "No calls yet: make one, or replay some." : counted(session.calls);
    const title = drawn("title", { id: "chart-title" }, `Time line of calls. ${summary}`);
    chart.replaceChildren(title, ...parts);
    byId("summary").textContent = summary;
  }

  #scale;

  #axis(fromUs, toUs, x, bottom, width, upright) {
    const group = drawn("g", {});
    const { startUs } = this.#session;
    const steps = [
      1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1.5e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 1.8e9, 3.6e9,
      7.2e9, 2.16e10, 4.32e10, 8.64e10, 1.728e11, 6.048e11, 2.592e12, 3.1536e13, 3.1536e14,
    ];
    const step = steps.find((each) => (toUs - fromUs) / each <= width / 90) ?? steps.at(-1);
    let ticks = "";
    for (let us = Math.ceil((fromUs - startUs) / step) * step; startUs + us <= toUs; us += step) {
      const at = x(startUs + us).toFixed(1);
      ticks += upright(startUs + us);
      group.append(
        drawn(
          "text",
          { x: at, y: bottom + 18, "text-anchor": us === 0 ? "start" : "middle", class: "soft" },
          shown(us),
        ),
      );
    }
    group.prepend(drawn("path", { class: "grid", d: ticks }));
    return group;
  }

  #lane(lane, x, top, { LEFT, RIGHT, HEAD, ROOM, MARKS, width, fromUs, toUs }) {
    const group = drawn("g", {});
    const said = width > 700 ? numbers(lane.calls.map(({ call }) => call)) : "";
    const others = lane.commands.size > 1 ? ` and ${lane.commands.size - 1} more` : "";
    // The widths of a letter, roughly.
    const room = Math.floor((width - 60 - 8 * lane.key.length - 7 * said.length) / 7.8);
    const command = [...lane.commands].at(-1) + others;
    const label = drawn("text", { x: LEFT, y: top + 14 });
    label.append(
      drawn("tspan", { "font-weight": "600" }, lane.key),
      drawn(
        "tspan",
        { class: "soft", dx: "12", "font-family": "var(--mono)" },
        command.length > room ? `${command.slice(0, Math.max(0, room - 2))} ...` : command,
      ),
    );
    group.append(label);
    const ground = top + HEAD + ROOM;
    const limit = lane.samples.reduce((most, [, , each]) => Math.max(most, each), 1);
    const y = (remaining) => (ground - (remaining / limit) * (ROOM - 4)).toFixed(1);
    const visible = lane.samples.filter(([at], index) => at <= toUs && (lane.samples[index + 1]?.[0] ?? at) >= fromUs);
    if (visible.length > 1) {
      const clamp = (at) => Math.min(Math.max(x(at), LEFT), width - RIGHT).toFixed(1);
      let line = `M${clamp(visible[0][0])} ${y(visible[0][1])}`;
      for (const [at, remaining] of visible.slice(1)) line += `H${clamp(at)}V${y(remaining)}`;
      group.append(
        drawn("path", { class: "room", d: `${line}V${ground}H${clamp(visible[0][0])}Z` }),
        drawn("path", { class: "remains", d: line }),
      );
    }
    group.append(drawn("text", { x: width - RIGHT, y: top + 14, "text-anchor": "end", class: "soft" }, said));
    const base = ground + MARKS;
    const paths = { planned: "", admitted: "", dot: "", waited: "", ring: "", hole: "", late: "", denied: "" };
    const cross = (at, height) => `M${(at - 3.2).toFixed(1)} ${height - 3.2}l6.4 6.4m0 -6.4l-6.4 6.4`;
    for (const { call, at } of lane.calls) {
      if (call.endsAt < fromUs || call.at > toUs || call.verdict === "error") continue;
      const [from, to] = [x(call.at).toFixed(1), x(call.endsAt)];
      const waits = hasWaited(call);
      if (call.verdict === "waiting") {
        paths.planned += `M${from} ${base}L${x(this.#session.nowUs).toFixed(1)} ${base - 12}`;
      } else if (call.verdict === "admitted" && waits) {
        paths.waited += `M${from} ${base}L${to.toFixed(1)} ${base - 22}`;
        paths.ring += `M${to.toFixed(1)} ${base - 22}h0`;
      } else if (call.verdict === "admitted") {
        paths.admitted += `M${from} ${base}V${base - 22}`;
        paths.dot += `M${from} ${base - 22}h0`;
      } else {
        if (waits) paths.late += `M${from} ${base}L${to.toFixed(1)} ${base - 10}`;
        // In a call with several limits, those that allow it alone are not the reason.
        const answer = call.about.command === "RL.ALL" ? call.reply[6][at] : call.reply;
        if (answer[0] !== 0) paths.denied += cross(to, base - 10);
        else paths.planned += `M${from} ${base}v-8`;
      }
      if (call === this.#chosen)
        group.append(
          drawn("circle", { class: "chosen", cx: to, cy: base - (call.verdict === "admitted" ? 22 : 10), r: 7.5 }),
        );
    }
    paths.hole = paths.ring;
    for (const { at, words } of this.#session.planned) {
      if (at <= toUs && aboutCall(words).keys.includes(lane.key)) paths.planned += `M${x(at).toFixed(1)} ${base}v-5`;
    }
    group.append(drawn("path", { class: "base", d: `M${LEFT} ${base}H${width - RIGHT}` }));
    for (const [name, d] of Object.entries(paths)) if (d !== "") group.append(drawn("path", { class: name, d }));
    return group;
  }

  /** Chooses the call that is nearest to a click. */
  #chooseAt(clicked) {
    const { left, top } = byId("chart").getBoundingClientRect();
    const { fromUs, toUs, width, laneHeight, lanes, left: margin } = this.#scale;
    const lane = lanes[Math.floor((clicked.clientY - top - 6) / laneHeight)];
    const us = fromUs + ((clicked.clientX - left - margin) / width) * (toUs - fromUs);
    let nearest;
    for (const { call } of lane?.calls ?? []) {
      if (nearest === undefined || Math.abs(call.endsAt - us) < Math.abs(nearest.endsAt - us)) nearest = call;
    }
    if (nearest === undefined) return;
    this.#chosen = nearest;
    this.#key = lane.key;
    this.#refresh();
  }
}

// ---- In words ----

const hasWaited = ({ at, endsAt }) => endsAt > at;

function classOf(call) {
  if (call.verdict === "admitted") return hasWaited(call) ? "is-waited" : "is-admitted";
  if (call.verdict.includes("denied")) return "is-denied";
  return call.verdict === "error" ? "is-error" : "";
}

function verdictOf(call) {
  const { verdict, at, endsAt } = call;
  if (verdict === "waiting") return "waits ...";
  const isTake = verdict === "admitted" || verdict === "denied";
  return isTake && hasWaited(call) ? `${verdict} after ${shown(endsAt - at)}` : verdict;
}

/** Describes the outcome of a call in a sentence. */
function sentence(call) {
  const { about, reply } = call;
  if (reply instanceof ReplyError) return reply.text;
  if (call.verdict === "waiting") return "It waits in line. Advance the clock.";
  if (!about.takes) return "Answered.";
  if (call.verdict === "admitted")
    return `Admitted${hasWaited(call) ? `, to go on in ${shown(call.endsAt - call.at)}` : ""}; ${reply[2]} of ${reply[1]} remain.`;
  return reply[3] < 0
    ? "Denied: it can never be allowed."
    : `Denied; allowed in ${shown(reply[3] * (about.inMs ? 1e3 : 1e6))}.`;
}

/** Returns the largest number of times within a span. The times are sorted. */
function mostWithin(times, span) {
  let most = 0;
  for (let first = 0, last = 0; last < times.length; last += 1) {
    while (times[last] - times[first] >= span) first += 1;
    most = Math.max(most, last - first + 1);
  }
  return most;
}

/** Describes the outcomes of calls, with their number. */
function counted(calls) {
  const takes = calls.filter(({ about, verdict }) => about.takes && verdict !== "error").length;
  return `${takes} ${takes === 1 ? "call" : "calls"}: ${numbers(calls)}.`;
}

/** Counts the outcomes of calls. */
function numbers(calls) {
  const takes = calls.filter(({ about, verdict }) => about.takes && verdict !== "error");
  const countOf = (verdict) => takes.filter((call) => call.verdict === verdict).length;
  const admitted = takes.filter(({ verdict }) => verdict === "admitted");
  const later = admitted.filter(hasWaited).length;
  const parts = [
    `${admitted.length} admitted${later > 0 ? ` (${later} after a wait)` : ""}`,
    `${countOf("denied")} denied`,
  ];
  if (countOf("waiting") > 0) parts.push(`${countOf("waiting")} waiting`);
  const failed = calls.filter(({ verdict }) => verdict === "error").length;
  if (failed > 0) parts.push(`${failed} errors`);
  const periods = new Set(takes.map(({ about }) => about.period));
  const texts = new Set(takes.map(({ text }) => text));
  const [period] = periods;
  let most = "";
  if (periods.size === 1 && texts.size === 1 && period > 0) {
    const times = admitted.map(({ endsAt }) => endsAt).sort((one, other) => one - other);
    most = `; at most ${mostWithin(times, period)} went ahead in any ${shown(period)}`;
  }
  return parts.join(", ") + most;
}

// ---- Begin ----

function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const id of ["command", "every", "count", "times", "timezone", "policies", "start"]) {
    if (kept.has(id)) byId(id).value = kept.get(id);
  }
  if (kept.get("plan") === "times") byId("at-times").checked = true;
}

async function begin() {
  recall();
  try {
    const module = await loadEngine();
    new Page(module);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("trouble").textContent = error.message;
  }
}

begin();
