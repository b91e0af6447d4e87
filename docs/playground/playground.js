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

const encoded = new WeakMap();

/** Returns the bytes of words, each after its length. A replay calls the same words thousands of times. */
function encode(words) {
  if (!encoded.has(words)) {
    const parts = words.map((word) => new TextEncoder().encode(word));
    const lengths = parts.map(({ length }) => new Uint8Array(Uint32Array.of(length).buffer));
    encoded.set(words, Uint8Array.from(parts.flatMap((part, at) => [...lengths[at], ...part])));
  }
  return encoded.get(words);
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
    const bytes = encode(words);
    const begin = this.#exports.input(bytes.length);
    new Uint8Array(this.#exports.memory.buffer).set(bytes, begin);
    const count = this.#exports.call(bytes.length, nowUs);
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

/** The syntax of each command, from the page that describes them. */
const SYNTAX = new Map();

async function loadSyntax() {
  const answer = await fetch("../commands.md").catch(() => ({ ok: false }));
  const text = answer.ok ? await answer.text() : "";
  for (const [, syntax, name] of text.matchAll(/^```text\n((RL\.\w+)[^`]*)\n```/gm)) {
    SYNTAX.set(name, syntax.replace(/\s+/g, " "));
  }
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
const MAX_CALLS = 100_000;

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

/** Returns a duration as a person would type it. */
function typed(us) {
  return us % 1e6 === 0 ? `${us / 1e6}s` : `${us / 1e3}ms`;
}

// ---- What a call is about ----

const WITH_VALUE = new Set(["LEAVE", "BLOCK", "BY", "WEIGHT", "AHEAD", "BAN", "LEASE", "ID", "BUCKETS", "FROM", "TZ"]);
/** The options that belong to the window. */
const WINDOW_OPTIONS = new Set(["BUCKETS", "FIXED", "FROM", "TZ"]);
const CLAUSES = new Set(["THROTTLE", "WINDOW", "ACQUIRE"]);

/** Returns the parts of a limit, and the command that shows what remains of it. `words` are those after the key. */
function limitOf(kind, words, key = "") {
  const length = words[0]?.startsWith("@") ? 1 : kind === "THROTTLE" ? 3 : 2;
  const numbers = words.slice(0, length);
  const look = [`RL.${kind}_RO`, key, ...numbers, "MS"];
  const options = new Map();
  for (let at = length; at < words.length; at += 1) {
    const name = words[at].toUpperCase();
    const value = WITH_VALUE.has(name) ? [words[(at += 1)] ?? ""] : [];
    options.set(name, value[0]);
    if (WINDOW_OPTIONS.has(name)) look.push(name, ...value);
  }
  return { kind, numbers, options, look };
}

/** Returns a time with its unit. */
const withUnit = (time, unit = "s") => (/^\d+$/.test(time) ? time + unit : time);

/** Describes what a limit guarantees. */
function meaning({ kind, numbers, options }) {
  if (numbers[0]?.startsWith("@")) return "";
  const length = numbers.at(-1);
  const period = withUnit(length);
  const [limit] = numbers;
  const texts = [];
  if (kind === "THROTTLE") {
    const burst = Number(limit) + 1;
    texts.push(`Up to ${burst} at once, and ${numbers[1]} in ${period} in the long run.`);
  } else if (Number(length) === 0) {
    texts.push(`At most ${limit} at the same time.`);
  } else if (options.get("FROM")?.toLowerCase() === "first") {
    texts.push(
      `At most ${limit} in each ${period} that begins with a call; almost twice that where two of these meet.`,
    );
  } else if (options.has("FIXED")) {
    texts.push(`At most ${limit} in each ${period} of the calendar; twice that in ${period} where two of these meet.`);
  } else {
    texts.push(`Never more than ${limit} in any ${period}, which may all come at once.`);
  }
  if (options.has("BUCKETS")) texts.push("Capacity comes back in groups.");
  if (options.has("COUNTDENIED")) texts.push("Denied calls count too.");
  if (options.has("BAN")) texts.push(`A denied call closes the key for ${withUnit(options.get("BAN"), "ms")}.`);
  if (options.has("BLOCK")) texts.push(`Calls wait in line for up to ${withUnit(options.get("BLOCK"), "ms")}.`);
  if (options.has("AHEAD")) texts.push(`Calls are booked up to ${withUnit(options.get("AHEAD"), "ms")} ahead.`);
  return texts.join(" ");
}

/** Returns what a command is about: whether it takes or looks, its keys with their limits, and whether it has MS. */
function aboutCall(words) {
  const command = words[0].toUpperCase();
  const [, kind, isLook] = /^(?:RL|CL)\.(THROTTLE|WINDOW|ACQUIRE|ALL)(_RO)?$/.exec(command) ?? [];
  const about = { command, takes: kind !== undefined && !isLook, looks: Boolean(isLook), isAll: kind === "ALL" };
  about.keys = words.slice(1, 2);
  about.limits = CLAUSES.has(kind) ? [limitOf(kind, words.slice(2), words[1])] : [];
  if (about.isAll) {
    const end = 2 + Math.max(0, Number.parseInt(words[1], 10));
    about.keys = words.slice(2, end);
    const clauses = [];
    // Clauses that ELSE joins are a group.
    let isJoined = false;
    for (let at = end; at < words.length; at += 1) {
      const word = words[at].toUpperCase();
      if (CLAUSES.has(word)) {
        clauses.push({ kind: word, words: [], group: isJoined ? clauses.at(-1)?.group : clauses.length });
      } else if (word !== "ELSE") {
        clauses.at(-1)?.words.push(words[at]);
        if (WITH_VALUE.has(word) && at + 1 < words.length) clauses.at(-1)?.words.push(words[(at += 1)]);
      }
      isJoined = word === "ELSE";
    }
    about.limits = clauses.map((one, at) => ({ ...limitOf(one.kind, one.words, about.keys[at]), group: one.group }));
  }
  about.isMs = about.limits.some(({ options }) => options.has("MS"));
  return about;
}

/** Returns a command to call. */
const commandOf = (words, text = words.join(" ")) => ({ words, text, about: aboutCall(words) });

// ---- A session: a server, its clock, the calls ----

/** A key with its calls, as drawn on the time line. */
class Lane {
  constructor(key) {
    this.key = key;
    /** Each call, and which of its limits is the one of this key. */
    this.calls = [];
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
    /** The calls to make later, the next one last. */
    this.planned = [];
    this.waiting = new Map();
    for (const [name, value] of settings) {
      const reply = this.engine.call(["CONFIG", "SET", `ratelimit.${name}`, value], startUs);
      if (reply instanceof ReplyError) throw new Error(reply.text.replace(/^ERR /, ""));
    }
  }

  /** Sets the calls to make later. */
  plan(calls) {
    this.planned = calls.sort((one, other) => one.at - other.at).reverse();
  }

  /** Advances the clock, with everything that happens until then. */
  advance(untilUs) {
    const gap = Math.max(1_000, (untilUs - this.nowUs) / 400);
    // Ends the loop if the engine says that something is due, but nothing happens.
    let idle = 0;
    for (;;) {
      const dueUs = idle < 3 ? this.engine.nextUs() : Infinity;
      const plannedUs = this.planned.at(-1)?.at ?? Infinity;
      const next = Math.max(this.nowUs, Math.min(dueUs, plannedUs, untilUs));
      idle = next > this.nowUs ? 0 : idle + 1;
      for (let at = this.nowUs + gap; at < next; at += gap) this.#sample(at);
      this.nowUs = next;
      if (dueUs <= next) this.#settle();
      if (plannedUs <= next) {
        this.make(this.planned.pop());
        idle = 0;
      } else if (next >= untilUs && (dueUs > next || idle >= 3)) {
        break;
      }
    }
    this.#sample(this.nowUs);
  }

  /** Makes the planned calls, and waits up to an hour for those in line. */
  run() {
    this.advance(this.planned[0]?.at ?? this.nowUs);
    for (let turns = 0; this.waiting.size > 0 && turns < MAX_CALLS; turns += 1) {
      const dueUs = this.engine.nextUs();
      if (dueUs > this.nowUs + UNITS.h) break;
      this.advance(dueUs);
    }
  }

  /** Makes a call now. */
  make({ words, text, about }) {
    const call = { number: this.calls.length + 1, at: this.nowUs, endsAt: this.nowUs, text, words, about };
    const reply = this.engine.call(words, this.nowUs);
    this.calls.push(call);
    if (about.takes && !(reply instanceof ReplyError)) this.#enter(call);
    if (reply instanceof Ticket) {
      call.verdict = "waiting";
      this.waiting.set(reply.number, call);
    } else {
      this.#finish(call, reply);
    }
    this.#settle();
    this.#sample(this.nowUs, about.keys);
    return call;
  }

  /** Adds a call to the lanes of its keys. */
  #enter(call) {
    for (const [at, limit] of call.about.limits.entries()) {
      const key = call.about.keys[at];
      const lane = this.lanes.get(key) ?? new Lane(key);
      lane.look = limit.look;
      lane.calls.push({ call, at });
      if (this.lanes.has(key)) continue;
      this.lanes.set(key, lane);
      // Before the first call that was the whole limit.
      const reply = this.engine.call(lane.look, this.nowUs);
      if (Array.isArray(reply)) lane.sample(this.nowUs, reply[1], reply[1]);
    }
  }

  #finish(call, reply) {
    call.reply = reply;
    call.endsAt = this.nowUs;
    const { about } = call;
    if (reply instanceof ReplyError) {
      call.verdict = "error";
    } else if (about.takes) {
      const isBooked = about.limits[0]?.options.has("AHEAD") && reply[5] > 0;
      if (isBooked) call.endsAt += reply[5] * (about.isMs ? 1e3 : 1e6);
      call.verdict = reply[0] === 0 ? "admitted" : "denied";
    } else {
      call.verdict = about.looks ? (reply[0] === 0 ? "would be admitted" : "would be denied") : "";
    }
  }

  #settle() {
    for (const [ticket, reply] of this.engine.takeEnded(this.nowUs)) {
      const call = this.waiting.get(ticket);
      this.waiting.delete(ticket);
      if (call !== undefined) this.#finish(call, reply);
    }
  }

  /** Records what remains of the limits of keys. */
  #sample(at, keys = this.lanes.keys()) {
    for (const key of keys) {
      const lane = this.lanes.get(key);
      const reply = lane && this.engine.call(lane.look, at);
      if (Array.isArray(reply)) lane.sample(at, reply[2], reply[1]);
    }
  }
}

// ---- In words ----

const hasWaited = ({ at, endsAt }) => endsAt > at;

/** Returns the verdict of a call on one of its limits; "other" if another limit denied it or was taken instead. */
function verdictAt({ verdict, about, reply }, at) {
  if (!about.isAll || verdict === "waiting") return verdict;
  const isAllowed = (each) => reply[6][each][0] === 0;
  if (verdict === "denied") return isAllowed(at) ? "other" : verdict;
  const { group } = about.limits[at];
  return about.limits.findIndex((limit, each) => limit.group === group && isAllowed(each)) === at ? verdict : "other";
}

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
  if (call.verdict === "waiting") return "It waits in line. Step or play the clock.";
  if (!about.takes) return "Answered.";
  if (call.verdict === "admitted")
    return `Admitted${hasWaited(call) ? `, to go on in ${shown(call.endsAt - call.at)}` : ""}; ${reply[2]} of ${reply[1]} remain.`;
  return reply[3] < 0
    ? "Denied: it can never be allowed."
    : `Denied; allowed in ${shown(reply[3] * (about.isMs ? 1e3 : 1e6))}.`;
}

/** Describes what the next call would get, from the reply to a look. */
function nextCall(reply) {
  if (!Array.isArray(reply)) return replyText(reply);
  const [limited, limit, remaining, retryMs] = reply;
  if (limited === 0) return `${remaining} of ${limit} remain.`;
  return retryMs < 0 ? "No call is ever allowed." : `The next call is allowed in ${shown(retryMs * 1e3)}.`;
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

/** Counts the outcomes of calls. */
function counted(calls) {
  const takes = calls.filter(({ about, verdict }) => about.takes && verdict !== "error");
  const countOf = (verdict) => takes.filter((call) => call.verdict === verdict).length;
  const later = takes.filter((call) => call.verdict === "admitted" && hasWaited(call)).length;
  const parts = [
    `${countOf("admitted")} admitted${later > 0 ? ` (${later} after a wait)` : ""}`,
    `${countOf("denied")} denied`,
  ];
  if (countOf("waiting") > 0) parts.push(`${countOf("waiting")} waiting`);
  const failed = calls.filter(({ verdict }) => verdict === "error").length;
  if (failed > 0) parts.push(`${failed} errors`);
  return `${takes.length} ${takes.length === 1 ? "call" : "calls"}: ${parts.join(", ")}.`;
}

/** Returns what a lane admitted, as [number, text]. */
function figures(lane) {
  const admitted = lane.calls.filter(({ call, at }) => verdictAt(call, at) === "admitted");
  const times = admitted.map(({ call }) => call.endsAt).sort((one, other) => one - other);
  const rows = [
    [admitted.length, `of ${lane.calls.length} admitted`],
    [mostWithin(times, 1), "most at once"],
  ];
  const { call, at } = lane.calls.at(-1);
  const period = call.about.limits[at].numbers.at(-1);
  if (duration(period) > 0) rows.push([mostWithin(times, duration(period)), `most in any ${withUnit(period)}`]);
  return rows;
}

const MEANINGS = {
  limit: "the largest quantity that is available at once",
  remaining: "the quantity that is left after this call",
  reset_after: "until the bucket is full or the window is empty",
  granted: "the quantity that was taken",
  kind: "a bucket (RL.THROTTLE), or a window with events and reservations",
  full_in: "ms until the bucket is full",
  debt: "ms of debt of FORCE or AHEAD, as it was last written",
  events: "the quantity that is counted in the key",
  denied: "the part of it that denied calls counted (COUNTDENIED)",
  entries: "the number of entries that store it",
  oldest: "the age of the oldest event in ms",
  newest: "the age of the newest event in ms",
  held: "the quantity that is reserved",
  reservations: "the number of reservations in the key whose lease has not ended",
  ban: "ms until the ban ends",
  waiting: "the number of calls that wait in the key's line",
  ttl: "ms until the key expires",
};

const LIMITED = ["allowed", "denied", "denied because others hold the capacity, and may give it back"];

/** Returns a reply as text. */
function replyText(reply) {
  if (reply instanceof ReplyError) return reply.text;
  return Array.isArray(reply)
    ? reply.map((one) => (Array.isArray(one) ? `[${replyText(one)}]` : replyText(one))).join(" ")
    : String(reply ?? "nil");
}

/** Returns the elements of a reply, each with its name, value and meaning. */
function elementsOf({ about, reply }) {
  if (about.command === "RL.INFO" && Array.isArray(reply)) return infoRows(reply);
  if (!(about.takes || about.looks) || !Array.isArray(reply)) return [["reply", replyText(reply), ""]];
  const unit = about.isMs ? "ms" : "s";
  const [limited, limit, remaining, retry, reset, ...more] = reply;
  const never = limited === 0 ? "allowed" : "it can never be allowed";
  const rows = [
    ["limited", limited, LIMITED[limited]],
    ["limit", limit, MEANINGS.limit],
    ["remaining", remaining, MEANINGS.remaining],
    ["retry_after", retry, retry < 0 ? never : `${unit} until this call is allowed, if no others take anything`],
    ["reset_after", reset, `${unit} ${MEANINGS.reset_after}`],
  ];
  if (about.isAll) {
    const answers = more[1].map((answer, at) => [`answer ${at + 1}`, replyText(answer), `for ${about.keys[at]}`]);
    rows.push(["clause", more[0], "the clause that decides"], ...answers);
  } else if (about.command.includes("ACQUIRE")) {
    rows.push(["id", more[0], "by which the reservation is settled; nil if nothing was reserved"]);
    if (more.length > 1)
      rows.push(["granted", more[1], MEANINGS.granted], ["reservations", more[2], MEANINGS.reservations]);
  } else if (about.limits[0].options.has("ATMOST")) {
    rows.push(["granted", more[0], MEANINGS.granted]);
  } else if (more.length > 0) {
    rows.push(["wait", more[0], more[0] < 0 ? "denied" : `${unit} after which the caller may go on`]);
  }
  return rows;
}

/** Returns the fields of RL.INFO, each with its value and meaning. */
function infoRows(reply) {
  return reply.flatMap((name, at) => (at % 2 === 0 ? [[name, reply[at + 1], MEANINGS[name] ?? ""]] : []));
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

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
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

const empty = (text) => element("p", { className: "empty" }, text);

const EXAMPLES = [
  ["a steady rate with bursts", "RL.THROTTLE user:1 4 1 1s", "200ms", 20],
  ["at most 5 in any 3 seconds", "RL.WINDOW calls:1 5 3s", "200ms", 40],
  ["the same, in groups (BUCKETS)", "RL.WINDOW buckets:1 5 3s BUCKETS 3", "200ms", 40],
  ["windows of the calendar (FIXED)", "RL.WINDOW quota:1 5 3s FIXED", "200ms", 40],
  ["a window that begins with the first call", "RL.WINDOW first:1 5 3s FIXED FROM first", "200ms", 40],
  ["whoever hammers stays out", "RL.WINDOW login:ann 3 2s COUNTDENIED", "400ms", 20],
  ["a ban", "RL.WINDOW login:bob 3 2s 1 BAN 4s", "400ms", 30],
  ["wait in line", "RL.THROTTLE mail 0 2 1s BLOCK 3s", "250ms", 20],
  ["book ahead", "RL.THROTTLE crawl 0 2 1s AHEAD 3s MS", "250ms", 20],
  ["at most 3 at the same time", "RL.ACQUIRE report 3 0 LEASE 2s", "300ms", 20],
  ["two limits at once", "RL.ALL 2 {u}:second {u}:ten WINDOW 2 1s WINDOW 8 10s", "200ms", 60],
  ["the plan, else the credits", "RL.ALL 2 {u}:plan {u}:credits WINDOW 3 2s ELSE THROTTLE 5 1 2s", "200ms", 40],
];

/** The fields that the address keeps. */
const KEPT = ["command", "together", "every", "count", "times", "start", "timezone", "policies"];

/** The maximum number of lines of the log. */
const MAX_LINES = 300;

class Page {
  #module;
  #session;
  /** The call whose reply is shown, with what its keys hold. */
  #chosen;
  /** The turn of the clock that comes next; undefined while it is stopped. */
  #turn;
  #isDrawing = false;
  #logged = 0;

  constructor(module) {
    this.#module = module;
    // The settings in the address may be wrong.
    this.#session = new Session(module, 0, []);
    this.#wire();
    this.#guarded(() => this.#replay());
    let width;
    new ResizeObserver(([{ contentRect }]) => {
      if (width !== contentRect.width) this.#draw();
      width = contentRect.width;
    }).observe(byId("lanes"));
  }

  // -- What is typed

  #startUs() {
    const given = byId("start").value.trim();
    if (given === "") return Math.floor(Date.now() / 60_000) * 6e7;
    const ms = Date.parse(/[zZ]|[+-]\d\d:\d\d$/.test(given) ? given : `${given}Z`);
    if (!(ms >= 0 && ms < 9e12)) throw new Error("The clock starts at a date such as 2026-11-22T12:00:00Z.");
    return ms * 1000;
  }

  #settings() {
    const settings = ["timezone", "policies"].map((name) => [name, byId(name).value.trim()]);
    return settings.filter(([, value]) => value !== "");
  }

  /** Returns the command of each line that is typed. */
  #typed(text = byId("command").value) {
    const lines = text
      .split("\n")
      .map((line) => line.trim())
      .filter((line) => line !== "");
    if (lines.length === 0) throw new Error("Type a command, such as RL.WINDOW user:1 5 60.");
    return lines.map((line) => {
      const words = split(line);
      if (words === null) throw new Error(`A quote is left open: ${line}`);
      return commandOf(words, line);
    });
  }

  /** Shows what the typed commands guarantee, or what is wrong with them. */
  #understand() {
    const command = byId("command");
    command.rows = Math.min(8, command.value.split("\n").length);
    let said = [];
    let isWrong = false;
    try {
      const calls = this.#typed();
      // They run on another server in memory, so that nothing is taken.
      const scratch = new Session(this.#module, this.#session.nowUs, this.#settings());
      const wrong = calls.map((call) => scratch.make(call)).find(({ verdict }) => verdict === "error");
      isWrong = wrong !== undefined;
      if (isWrong) {
        const syntax = SYNTAX.get(wrong.about.command) ?? `The commands are ${[...SYNTAX.keys()].join(", ")}.`;
        said = [calls.length > 1 ? `${wrong.text}: ` : "", wrong.reply.text, element("code", {}, syntax)];
      } else if (calls.length === 1) {
        said = [calls[0].about.limits.map(meaning).join(" ")];
      }
    } catch (error) {
      isWrong = true;
      said = [error.message];
    }
    byId("understood").replaceChildren(...said);
    byId("understood").classList.toggle("wrong", isWrong);
    command.setAttribute("aria-invalid", String(isWrong));
  }

  // -- What is done

  #wire() {
    const on = (id, event, what) => byId(id).addEventListener(event, (happened) => this.#guarded(() => what(happened)));
    const submit = (id, what) =>
      on(id, "submit", (submitted) => {
        submitted.preventDefault();
        what();
      });
    submit("wish", () => this.#compare());
    submit("calls", () => this.#replay());
    on("command", "input", () => this.#understand());
    on("command", "keydown", (key) => {
      if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
      key.preventDefault();
      if (key.ctrlKey || key.metaKey) this.#call();
      else this.#replay();
    });
    on("watch", "click", () => this.#replay(true));
    on("call", "click", () => this.#call());
    on("forget", "click", () => {
      this.#begin();
      this.#say("There are no keys and no calls.");
    });
    on("play", "click", () => this.#play(this.#turn === undefined));
    on("step", "click", () => this.#step());
    on("examples", "change", () => {
      const example = EXAMPLES[Number(byId("examples").value)];
      if (example === undefined) return;
      const [, command, every, count] = example;
      this.#fill({ command, together: 1, every, count, times: "", start: "" });
      this.#replay();
    });
    byId("examples").append(...EXAMPLES.map(([name], value) => element("option", { value }, name)));
    for (const id of ["start", "timezone", "policies"]) on(id, "change", () => this.#replay());
    // An address that was pasted into this page.
    window.addEventListener("hashchange", () => location.reload());
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

  #fill(values) {
    for (const [id, value] of Object.entries(values)) byId(id).value = value;
  }

  /** Types the commands that come near to what is wanted, with calls at twice the rate. */
  #compare() {
    const numbers = ["limit", "burst"].map((id) => Number(byId(id).value));
    if (!numbers.every((number) => Number.isInteger(number) && number >= 1 && number <= 5000)) {
      throw new Error("Compare whole numbers from 1 to 5000.");
    }
    const [limit, burst] = numbers;
    const period = byId("period").value;
    const bucket = `${burst - 1} ${limit} ${period}`;
    const window = `${limit} ${period}`;
    const commands = [
      `RL.THROTTLE bucket ${bucket}`,
      `RL.WINDOW sliding ${window}`,
      `RL.WINDOW calendar ${window} FIXED`,
      `RL.WINDOW first ${window} FIXED FROM first`,
    ];
    if (burst < limit) commands.push(`RL.ALL 2 {both}:burst {both}:limit THROTTLE ${bucket} WINDOW ${window}`);
    this.#fill({ command: commands.join("\n") });
    // The calls of a log stay.
    if (byId("times").value.trim() !== "") return this.#replay();
    const periodUs = duration(period);
    const every = typed(Math.round((periodUs * burst) / limit / 2));
    // In the middle of a calendar window, so that two of them meet.
    const start = new Date(Date.UTC(2026, 0) + periodUs / 2e3).toISOString();
    this.#fill({ together: burst, every, count: Math.max(4, Math.ceil((4 * limit) / burst)), start });
    this.#replay();
    this.#say("Each command gets the same calls, at twice the limit. They start in the middle of a calendar window.");
  }

  #call() {
    this.#remember();
    const made = this.#typed().map((call) => this.#session.make(call));
    this.#chosen = made.at(-1);
    this.#say(made.map((call) => sentence(call)).join(" "));
    this.#refresh();
  }

  #step() {
    const by = byId("step-by").value;
    const us = duration(by);
    if (us === undefined) throw new Error(`A step is a time such as 200ms or 5s, not ${by || "nothing"}.`);
    this.#session.advance(this.#session.nowUs + us);
    this.#refresh();
  }

  /** Returns the calls to replay. */
  #planned() {
    const { nowUs } = this.#session;
    const typed = this.#typed();
    let moments = parseTimes(byId("times").value);
    if (moments.length === 0) {
      const every = duration(byId("every").value);
      if (every === undefined) throw new Error("Calls come every so often: a time such as 200ms.");
      const [together, count] = ["together", "count"].map((id) => Number(byId(id).value));
      if (![together, count].every((number) => Number.isInteger(number) && number >= 1 && number <= MAX_CALLS)) {
        throw new Error(`The number of calls is from 1 to ${MAX_CALLS}.`);
      }
      const length = Math.min(together * count, MAX_CALLS + 1);
      moments = Array.from({ length }, (_, at) => ({ after: Math.floor(at / together) * every }));
    }
    if (moments.length * typed.length > MAX_CALLS) {
      throw new Error(`More than ${MAX_CALLS} calls are too many for this page.`);
    }
    return moments.flatMap(({ after, command }) =>
      (command === undefined ? typed : this.#typed(command)).map((call) => ({ ...call, at: nowUs + after })),
    );
  }

  /** Makes all calls from the start, at once or as the clock plays. */
  #replay(isWatched = false) {
    this.#begin();
    const session = this.#session;
    session.plan(this.#planned());
    if (isWatched) {
      this.#say(`${session.planned.length} calls are planned.`);
      this.#play(true, true);
    } else {
      session.run();
      this.#chosen = session.calls.at(-1);
      const wrong = session.calls.find(({ verdict }) => verdict === "error");
      this.#say(wrong?.reply.text ?? counted(session.calls), wrong !== undefined);
    }
  }

  /** Lets the clock run, or stops it. If the calls are watched, it stops after the last one. */
  #play(isOn, isWatched = false) {
    byId("play").textContent = isOn ? "Pause" : "Play";
    this.#turn = undefined;
    this.#refresh();
    if (!isOn) return;
    // Without motion the page still has to show what happens.
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const later = isCalm ? (turn) => setTimeout(() => turn(performance.now()), 500) : requestAnimationFrame;
    let last = performance.now();
    const turn = (time) => {
      if (this.#turn !== turn) return;
      const session = this.#session;
      // A page that was hidden continues where it was.
      const passedUs = Math.min(Math.max(0, time - last), 600) * 1000 * Number(byId("speed").value);
      last = time;
      const before = session.calls.length;
      session.advance(session.nowUs + Math.round(passedUs));
      if (session.calls.length > before) this.#chosen = session.calls.at(-1);
      if (isWatched && session.planned.length === 0 && session.waiting.size === 0) {
        this.#say(counted(session.calls));
        this.#play(false);
      } else {
        later(turn);
      }
      this.#refresh();
    };
    this.#turn = turn;
    later(turn);
  }

  /** Starts a new server with the typed settings. */
  #begin() {
    this.#play(false);
    this.#remember();
    byId("settings-wrong").textContent = "";
    try {
      this.#session = new Session(this.#module, this.#startUs(), this.#settings());
    } catch (error) {
      byId("settings-wrong").textContent = error.message;
      throw error;
    }
    this.#chosen = undefined;
    this.#logged = 0;
    byId("log").tBodies[0].replaceChildren();
    this.#understand();
  }

  /** Stores what is typed in the address. */
  #remember() {
    const kept = new URLSearchParams();
    for (const id of KEPT) {
      const { value, defaultValue } = byId(id);
      if (value !== defaultValue) kept.set(id, value);
    }
    const hash = kept.size > 0 ? `#${kept}` : "";
    if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname);
  }

  // -- What is shown

  #refresh() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      const { nowUs, startUs } = this.#session;
      const wall = new Date(nowUs / 1000).toISOString().replace("T", " ").replace("Z", "");
      byId("clock").replaceChildren(
        this.#turn ? "The clock runs: " : "The clock is stopped at ",
        element("b", {}, shown(nowUs - startUs)),
        ` (${wall} UTC).`,
        this.#turn ? "" : " Calls are made at this moment until you step or play it.",
      );
      this.#draw();
      this.#log();
      this.#reply();
      this.#holds();
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
      this.#chosen = call;
      this.#refresh();
    });
    const isWaiting = call.verdict === "waiting";
    const row = element(
      "tr",
      {},
      cell("", choose),
      cell("number", shown(call.at - this.#session.startUs)),
      cell("", element("span", { className: `verdict ${classOf(call)}` }, verdictOf(call))),
      cell("mono", isWaiting ? "" : replyText(call.reply)),
      cell("words", call.text),
    );
    row.dataset.call = call.number;
    if (isWaiting) row.className = "waits";
    return row;
  }

  #reply() {
    const call = this.#chosen;
    if (call === undefined || call.verdict === "waiting") {
      byId("reply").replaceChildren(empty(call ? "The call waits in line." : "No call is chosen."));
      return;
    }
    const caption = element("span", {}, `Call ${call.number}: `, element("code", {}, call.text));
    byId("reply").replaceChildren(table(caption, elementsOf(call)));
  }

  #holds() {
    const { engine, lanes, nowUs } = this.#session;
    const keys = this.#chosen?.about.keys.filter((key) => lanes.has(key)) ?? [];
    const tables = keys.map((key) => {
      const look = engine.call(lanes.get(key).look, nowUs);
      const info = engine.call(["RL.INFO", key], nowUs);
      const caption = element("span", {}, element("code", {}, `RL.INFO ${key}`), ` ${nextCall(look)}`);
      return table(caption, Array.isArray(info) ? infoRows(info) : []);
    });
    byId("holds").replaceChildren(...(tables.length > 0 ? tables : [empty("No key is chosen.")]));
  }

  // -- The time line

  #draw() {
    const { lanes, startUs, nowUs, planned, calls } = this.#session;
    const lastUs = calls.slice(-200).reduce((latest, call) => Math.max(latest, call.endsAt), planned[0]?.at ?? nowUs);
    const lengthUs = Math.max(lastUs - startUs, nowUs - startUs, 1e6) * 1.02;
    const width = Math.max(120, byId("lanes").clientWidth);
    const x = (us) => MARGIN + ((us - startUs) / lengthUs) * (width - 2 * MARGIN);
    const step = TICKS.find((each) => lengthUs / each <= width / 90) ?? TICKS.at(-1);
    const ticks = [];
    for (let us = 0; us <= lengthUs; us += step) ticks.push([x(startUs + us), shown(us)]);
    const view = { width, x, ticks };
    byId("lanes").replaceChildren(...[...lanes.values()].map((lane) => this.#lane(lane, view)));
    if (lanes.size === 0)
      byId("lanes").append(element("li", { className: "empty" }, "No calls yet: replay some, or make one."));
    for (const one of document.querySelectorAll("[data-for]")) {
      one.hidden = byId("lanes").querySelector(`.${one.dataset.for}`) === null;
    }
  }

  #lane(lane, view) {
    const { call, at } = lane.calls.at(-1);
    const others = new Set(lane.calls.map((each) => each.call.text)).size - 1;
    const name = element("code", {}, call.text);
    const head = [call.about.isAll ? element("b", {}, `${lane.key} `) : "", name];
    if (others > 0) head.push(` and ${others} more`);
    const list = figures(lane).map(([number, text]) => element("li", {}, element("b", {}, String(number)), ` ${text}`));
    const says = element("p", { className: "hint" }, meaning(call.about.limits[at]));
    return element(
      "li",
      {},
      element("div", {}, ...head, says),
      element("ul", { className: "figures" }, ...list),
      this.#picture(lane, view),
    );
  }

  #picture(lane, { width, x, ticks }) {
    const session = this.#session;
    const right = width - MARGIN;
    const picture = drawn("svg", {
      viewBox: `0 0 ${width} ${AXIS + 4}`,
      height: AXIS + 4,
      role: "img",
      "aria-label": `When calls on ${lane.key} are admitted`,
    });
    picture.addEventListener("click", ({ clientX }) => {
      const at = clientX - picture.getBoundingClientRect().left;
      const distance = ({ call }) => Math.abs(x(call.endsAt) - at);
      const nearest = lane.calls.reduce((best, each) => (distance(each) < distance(best) ? each : best));
      this.#chosen = nearest.call;
      this.#refresh();
    });
    const path = (name, d) => picture.append(drawn("path", { class: name, d }));
    const write = (at, y, text, anchor = "middle") =>
      picture.append(drawn("text", { x: at.toFixed(1), y, "text-anchor": anchor }, text));

    path("grid", ticks.map(([at]) => `M${at.toFixed(1)} 0V${LABEL}`).join(""));
    for (const [at, text] of ticks) {
      write(at, AXIS, text, at < 30 ? "start" : at > right - 30 ? "end" : "middle");
    }

    const limit = lane.samples.reduce((most, [, , each]) => Math.max(most, each), 1);
    const y = (remaining) => (GROUND - (remaining / limit) * GROUND).toFixed(1);
    if (lane.samples.length > 0) {
      const [[from]] = lane.samples;
      const line = lane.samples.map(([at, remaining]) => `H${x(at).toFixed(1)}V${y(remaining)}`).join("");
      path("room", `M${x(from)} ${GROUND}${line}V${GROUND}Z`);
      path("remains", `M${x(from)} ${y(lane.samples[0][1])}${line}`);
    }
    path("base", `M${MARGIN} ${BASE}H${right}`);

    path("nowline", `M${x(session.nowUs).toFixed(1)} 0V${LABEL}`);

    // Calls at the same moment are one mark with a number.
    const marks = new Map();
    const mark = (kind, from, to) => {
      const place = `${kind} ${x(from).toFixed(1)} ${x(to).toFixed(1)}`;
      marks.set(place, (marks.get(place) ?? 0) + 1);
    };
    for (const { call, at } of lane.calls) {
      const verdict = verdictAt(call, at);
      mark(hasWaited(call) ? `${verdict}-late` : verdict, call.at, verdict === "waiting" ? session.nowUs : call.endsAt);
    }
    for (const { at, about } of session.planned) if (about.keys.includes(lane.key)) mark("planned", at, at);
    const paths = {};
    const numbered = {};
    for (const [place, count] of marks) {
      const [kind, from, to] = place.split(" ");
      for (const [name, d] of SHAPES[kind](from, to)) paths[name] = (paths[name] ?? "") + d;
      const height = kind.startsWith("admitted") ? DOT - 7 : kind.startsWith("denied") ? LABEL : undefined;
      // Only where there is room for it.
      if (count === 1 || height === undefined || Number(to) - (numbered[height] ?? -99) < 8 * String(count).length)
        continue;
      numbered[height] = Number(to);
      write(Number(to), height, String(count));
    }
    for (const [name, d] of Object.entries(paths)) path(name, d);
    const chosen = lane.calls.find(({ call }) => call === this.#chosen);
    if (chosen !== undefined) {
      const cy = { admitted: DOT, denied: CROSS }[verdictAt(chosen.call, chosen.at)] ?? BASE - 8;
      picture.append(drawn("circle", { class: "chosen", cx: x(chosen.call.endsAt), cy, r: 7.5 }));
    }
    return picture;
  }
}

/** Pixels from the edge of a picture to its first moment. */
const MARGIN = 8;
/** From the top of a picture down: the area of what remains, admitted calls, the base line, denied calls, their number, times. */
const [GROUND, DOT, BASE, CROSS, LABEL, AXIS] = [30, 50, 70, 81, 98, 114];

/** How a call is drawn: for each verdict, classes and paths between the call and its end. */
const SHAPES = {
  planned: (from) => [["planned", `M${from} ${BASE}v-5`]],
  waiting: (from, to) => [["planned", `M${from} ${BASE}L${to} ${BASE - 12}`]],
  other: (from) => [["planned", `M${from} ${BASE}v-8`]],
  admitted: (from) => [
    ["admitted", `M${from} ${BASE}V${DOT}`],
    ["dot", `M${from} ${DOT}h0`],
  ],
  "admitted-late": (from, to) => [
    ["waited", `M${from} ${BASE}L${to} ${DOT}`],
    ["ring", `M${to} ${DOT}h0`],
    ["hole", `M${to} ${DOT}h0`],
  ],
  denied: (from) => [["denied", `M${Number(from) - 3.2} ${CROSS - 3.2}l6.4 6.4m0-6.4l-6.4 6.4`]],
  "denied-late": (from, to) => [["late", `M${from} ${BASE}L${to} ${CROSS}`], ...SHAPES.denied(to)],
};
SHAPES["other-late"] = SHAPES.other;

/** The distances between times below the time line, in microseconds. */
const TICKS = [
  1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1.5e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 1.8e9, 3.6e9,
  7.2e9, 2.16e10, 4.32e10, 8.64e10, 1.728e11, 6.048e11, 2.592e12, 3.1536e13, 3.1536e14,
];

// ---- Begin ----

async function begin() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const id of KEPT) byId(id).value = kept.get(id) ?? byId(id).defaultValue;
  byId("log-times").open = kept.has("times");
  try {
    const [module] = await Promise.all([loadEngine(), loadSyntax()]);
    new Page(module);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("trouble").textContent = error.message;
  }
}

begin();
