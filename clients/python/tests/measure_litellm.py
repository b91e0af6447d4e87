"""Compares the limiter of LiteLLM's proxy with redis_ratelimit.litellm, on two proxies that share a server: what is spent
over a budget, what is never given back, what denied calls cost, and what a call costs the server and the caller.

    make bench-litellm      # RUNS=10 with random kills, SEED=1

It fails if ours exceeds the budget, leaks, or charges a denied call. With the name of a page it writes its tables there,
between their marks. REDIS_SERVER and RATELIMIT_SO say what is measured: a release build.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before it is imported: there is no network
import litellm  # noqa: E402

from .fixtures import write_between  # noqa: E402
from .llm import Gateway, Provider, chat, key  # noqa: E402
from .servers import Clock, Server, Wire  # noqa: E402

RUNS = int(os.environ.get("RUNS", "10"))
SEED = int(os.environ.get("SEED", "1"))
#: Calls whose time is measured, with each limiter.
CALLS = int(os.environ.get("CALLS", "300"))
#: The number of calls at the same time, of those that the budget admits, and of the tries of each.
CLIENTS, ADMITTED, TRIES = 200, 40, 5
MOST = 100
#: The time after which LiteLLM has done its work in the background. Leases end when the clock is moved.
SETTLING_SECONDS = 10
#: The longest that a proxy takes to report a call that has ended: LiteLLM reports a cancelled call after five seconds, and
#: the server may be away.
REPORTING_SECONDS = 15
TEN_MINUTES = 600
#: A limit that denies nothing.
HUGE = 1_000_000_000
#: The units of the limits, and what follows their number.
UNITS = ("tokens", "/1h"), ("requests", "/1h"), ("calls", "")
#: The budgets are for an hour, so that nothing leaves them within ten minutes.
WINDOW = {"LITELLM_RATE_LIMIT_WINDOW_SIZE": "3600"}
ROUNDS = 10
TICKS = os.sysconf("SC_CLK_TCK")

BASE = """
model_list:
  - model_name: fake
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}", api_key: none}}
router_settings: {{num_retries: 0}}
"""
OWN = """
general_settings:
  custom_auth: own_auth.auth
  fail_closed_rate_limit_enforcement: true
  coordination_redis: {{host: 127.0.0.1, port: {port}}}
"""
OURS = """
general_settings: {{custom_auth: own_auth.auth}}
litellm_settings:
  callbacks: [redis_ratelimit.litellm.limiter]
callback_settings:
  redis_ratelimit:
    url: redis://127.0.0.1:{port}
    deadline: 10
    limits:
"""
NONE = "general_settings: {{custom_auth: own_auth.auth}}\n"
#: The owners of a call. LiteLLM's own limiter has limits for the same.
OWNERS = "key", "user", "team", "organization"


class Billing(Provider):
    """A provider whose prompts have as many tokens as LiteLLM counts, and which always reports the usage of a stream."""

    def prompt(self, body: dict[str, Any], order: dict[str, Any]) -> int:
        body["stream_options"] = {"include_usage": True}
        return prompt_tokens(body["messages"])


def prompt_tokens(messages: list[Any]) -> int:
    return int(litellm.token_counter(model="fake", messages=messages))


#: A text with about four characters per token, because LiteLLM's own limiter reserves a quarter of the characters.
PROSE = "Everybody understands international communication immediately. " * 2


class Limiter:
    """A limiter under test: the configuration of its proxies, and how its state is read."""

    name = "no limiter"
    config = BASE + NONE

    def owner(self, name: str, **limits: int) -> str:
        """Returns a key of LiteLLM with these limits."""
        return key(key_alias=name)

    def taken(self, server: Server, unit: str) -> int:
        """Returns how much of a limit is reserved or counted. The database has the limits of one key."""
        raise NotImplementedError


class Own(Limiter):
    name = "LiteLLM"
    config = BASE + OWN

    def owner(self, name: str, **limits: int) -> str:
        fields = {"tokens": "tpm_limit", "requests": "rpm_limit", "calls": "max_parallel_requests"}
        return key(key_alias=name, **{fields[unit]: most for unit, most in limits.items()})

    def taken(self, server: Server, unit: str) -> int:
        kind = "max_parallel_requests" if unit == "calls" else unit
        (found,) = server.ask("KEYS", f"{{api_key:*}}:{kind}") or [None]
        if found is None:
            return 0
        return int(server.ask("ZCARD", found) if unit == "calls" else server.ask("GET", found))


class Ours(Limiter):
    name = "redis-ratelimit"

    def __init__(self, *limits: str) -> None:
        self.config = BASE + OURS + "".join(f"      - {{{{{limit}}}}}\n" for limit in limits)

    def owner(self, name: str, **limits: int) -> str:
        return key(key_alias=name, metadata=limits)

    def taken(self, server: Server, unit: str) -> int:
        (found,) = server.ask("KEYS", f"{{llm}}:{unit}:*") or [None]
        if found is None:
            return 0
        words = server.ask("RL.INFO", found)
        fields = dict(zip(words[::2], words[1::2]))
        return int(fields["events"]) + int(fields["held"])


@dataclass
class Call:
    """A call of a client, which may hang up after some words."""

    number: int
    words: int
    stream: bool = False
    hangs_up_after: int | None = None
    pause: float = 0.0
    #: answered, cancelled, denied, failed, or cut: ended early because a proxy died or an error occurred.
    outcome: str = "failed"
    attempt: int = 0
    denials: int = 0
    #: The proxy that was asked last, and when the call ended.
    pid: int = 0
    ended: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.number}.{self.attempt}"

    def order(self) -> dict[str, Any]:
        order: dict[str, Any] = {"id": self.id, "words": self.words, "pause": self.pause, "text": PROSE}
        return chat(most=MOST, stream=self.stream, **order)

    @property
    def estimate(self) -> int:
        return prompt_tokens(self.order()["messages"]) + MOST

    def ask(self, gateway: Gateway, owner: str) -> None:
        self.pid = gateway.process.pid
        with gateway.sent("POST", "/v1/chat/completions", self.order(), owner) as connection:
            response = connection.getresponse()
            if response.status != 200:
                response.read()
                self.denials += response.status == 429
                self.outcome = "denied" if response.status == 429 else "failed"
                return
            self.outcome = "cut"
            seen = 0
            while line := response.readline():
                seen += line.count(b'"word')
                if self.hangs_up_after is not None and seen >= self.hangs_up_after:
                    self.outcome = "cancelled"
                    return
                if b"[DONE]" in line or not self.stream:
                    self.outcome = "answered"

    def run(self, gateways: list[Gateway], owner: str, generator: random.Random) -> None:
        """Asks the proxies in turn until one answers."""
        for self.attempt in range(TRIES):
            try:
                self.ask(gateways[(self.number + self.attempt) % len(gateways)], owner)
            except (OSError, http.client.HTTPException):
                pass  # The outcome is what it was before.
            self.ended = time.monotonic()
            if self.outcome in ("answered", "cancelled", "cut"):
                return
            time.sleep(generator.uniform(2, 5))


@dataclass
class Found:
    """The result of a load, or of several together."""

    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    #: The tokens of the budget, and those that were spent beyond it by answers within their estimates.
    budget: int = 0
    over: int = 0
    #: Tokens and places that are still taken after ten minutes although nobody used them.
    leaked: int = 0
    places: int = 0
    #: Tokens of ended calls that were not counted: because their proxy was killed first, or for another reason.
    unreported: int = 0
    uncounted: int = 0
    #: Requests that were counted although they were denied, and the number of denials.
    charged: int = 0
    denials: int = 0

    def add(self, other: Found) -> None:
        self.outcomes += other.outcomes
        for name in "runs", "budget", "over", "leaked", "places", "unreported", "uncounted", "charged", "denials":
            setattr(self, name, getattr(self, name) + getattr(other, name))


def load(generator: random.Random, run: int, mixed: bool) -> list[Call]:
    """Returns the calls of a load. If it is mixed, a third hangs up, and some answers exceed their maximum."""
    calls = []
    for at in range(CLIENTS):
        number = 1000 * run + at
        if not mixed:
            calls.append(Call(number, MOST))
        elif at % 3 == 0:
            calls.append(Call(number, MOST, True, generator.randint(1, MOST // 2), 0.02))
        else:
            words = MOST + 50 if at % 3 == 1 and at % 5 == 0 else generator.randint(MOST // 2, MOST)
            calls.append(Call(number, words, at % 2 == 0, None, 0.02))
    generator.shuffle(calls)
    return calls


def measure_load(
    limiter: Limiter, server: Server, provider: Billing, gateways: list[Gateway], clock: Clock, run: int, faults: bool
) -> Found:
    generator = random.Random(f"{SEED} {run} {faults}")
    calls = load(generator, run, faults)
    budget = ADMITTED * calls[0].estimate
    owner = limiter.owner(f"run{run}", tokens=budget, requests=HUGE, calls=CLIENTS)
    server.ask("FLUSHALL")
    provider.bills.clear()
    threads = [
        threading.Thread(target=call.run, args=[gateways, owner, random.Random(f"{SEED} {call.number}")])
        for call in calls
    ]
    for thread in threads:
        thread.start()
    killed, killed_at = 0, 0.0
    if faults:
        victim, kills = generator.choice(gateways), sorted(generator.uniform(2, 15) for _ in range(2))

        def die() -> None:
            nonlocal killed, killed_at
            killed, killed_at = victim.process.pid, time.monotonic()
            victim.kill()
            victim.start(wait=False)

        events = [die, server.restart]
        generator.shuffle(events)
        began = time.monotonic()
        for at, event in zip(kills, events):
            time.sleep(max(0.0, began + at - time.monotonic()))
            event()
    for thread in threads:
        thread.join()
    # Proxies settle in the background.
    time.sleep(SETTLING_SECONDS)
    clock.move_forward(TEN_MINUTES)
    found = Found(1, Counter(call.outcome for call in calls), budget, denials=sum(call.denials for call in calls))
    used = {
        id: sum(bill) for id, bill in provider.bills.items() if id.split(".")[0] in {str(it.number) for it in calls}
    }
    done = [call for call in calls if call.outcome in ("answered", "cancelled")]
    spent = sum(used[call.id] for call in done)
    excess = sum(max(0, used[call.id] - call.estimate) for call in done)
    tokens, requests = limiter.taken(server, "tokens"), limiter.taken(server, "requests")
    found.over = max(0, spent - budget - excess)
    found.leaked = max(0, tokens - sum(used.values()))
    unreported = sum(used[it.id] for it in done if it.pid == killed and it.ended > killed_at - REPORTING_SECONDS)
    found.unreported = min(unreported, max(0, spent - tokens))
    found.uncounted = max(0, spent - tokens - found.unreported)
    found.places = limiter.taken(server, "calls")
    found.charged = max(0, requests - len(used))
    if faults:
        victim._wait()
    return found


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and its children."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS


@dataclass
class Costs:
    """The costs of one call."""

    commands: float
    #: The number of times that the server read from a connection, which is that of round trips.
    reads: float
    server_us: float
    proxy_ms: float
    milliseconds: list[float]

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.milliseconds, n=100)[percent - 1]


class Meter:
    """Measures calls of one proxy, one after the other."""

    def __init__(self, server: Server | None, gateway: Gateway, owner: str) -> None:
        self.gateway, self.owner = gateway, owner
        self.wire = None if server is None else Wire(server.port)
        self.totals: Counter[str] = Counter()
        self.milliseconds: list[float] = []

    def _counts(self) -> dict[str, float]:
        counts = {"proxy": cpu_seconds(self.gateway.process.pid)}
        if self.wire is not None:
            info = dict(re.findall(r"^(\w+):([\d.]+)\r?$", self.wire.ask("INFO", "everything"), re.MULTILINE))
            counts["server"] = float(info["used_cpu_sys"]) + float(info["used_cpu_user"])
            counts["commands"], counts["reads"] = (
                float(info[name]) for name in ("total_commands_processed", "total_reads_processed")
            )
        return counts

    def warm(self) -> None:
        """The first call connects, and reads what is needed to count tokens."""
        Call(1, 1).ask(self.gateway, self.owner)

    def ask(self, calls: int) -> None:
        before = self._counts()
        for _ in range(calls):
            began = time.perf_counter()
            call = Call(1, 1)
            call.ask(self.gateway, self.owner)
            self.milliseconds.append(1000 * (time.perf_counter() - began))
            assert call.outcome == "answered", call
            # The proxy counts what a call used after it has answered.
            time.sleep(0.02)
        for name, value in self._counts().items():
            self.totals[name] += value - before[name]  # type: ignore[assignment]
        # INFO itself.
        self.totals["commands"] -= 1
        self.totals["reads"] -= 1

    def costs(self) -> Costs:
        calls = len(self.milliseconds)
        per = {name: value / calls for name, value in self.totals.items()}
        return Costs(per["commands"], per["reads"], 1e6 * per.get("server", 0), 1000 * per["proxy"], self.milliseconds)


@contextmanager
def proxies(limiter: Limiter, port: int, provider: Billing, count: int) -> Iterator[list[Gateway]]:
    config = limiter.config.format(url=provider.url, port=port)
    with ExitStack() as stack:
        # All start at the same time, because each takes long.
        started = [stack.enter_context(Gateway(config, wait=False)) for _ in range(count)]
        for each in started:
            each._wait()
        yield started


def measure_loads(limiter: Limiter, provider: Billing) -> list[Found]:
    """Returns the result of the load without faults, and the sum of those with faults."""
    durable = "--appendonly", "yes", "--appendfsync", "always"
    with Clock(behind_seconds=(RUNS + 1) * TEN_MINUTES) as clock, Server(*durable) as server:
        with proxies(limiter, server.port, provider, 2) as gateways:
            at_once = measure_load(limiter, server, provider, gateways, clock, 0, False)
            print(f"{limiter.name}, at once: {at_once}", flush=True)
            faults = Found()
            # After Ctrl-C the results so far are written.
            with suppress(KeyboardInterrupt):
                for run in range(1, RUNS + 1):
                    found = measure_load(limiter, server, provider, gateways, clock, run, True)
                    print(f"{limiter.name}, run {run} of seed {SEED}: {found}", flush=True)
                    faults.add(found)
    return [at_once, faults]


def measure_costs(provider: Billing) -> list[tuple[str, int, Costs]]:
    """Returns the costs of a call by limiter and number of limits. They take turns, so that other work slows all of them."""
    few, nine, many = ({"plan": plan} for plan in ("few", "nine", "many"))
    limits = [
        f"name: {unit}, per: key, {unit}: {HUGE}{each}, only: {{{{key.plan: [few, many]}}}}" for unit, each in UNITS
    ]
    limits += [
        f"name: {owner}_{unit}, per: {owner}, {unit}: {HUGE}{each}, only: {{{{key.plan: [nine, many]}}}}"
        for unit, each in UNITS
        for owner in (OWNERS if unit != "calls" else OWNERS[:1])
    ]
    limits += [
        f"name: limit{at}, per: key, tokens: {HUGE}/1h, only: {{{{key.plan: many}}}}" for at in range(64 - len(limits))
    ]
    owners = {"user_id": "u", "team_id": "t", "org_id": "o"}
    own = {"tpm_limit": HUGE, "rpm_limit": HUGE, "max_parallel_requests": HUGE}
    more = {f"{owner}_{kind}": HUGE for owner in OWNERS[1:] for kind in ("tpm_limit", "rpm_limit")}
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(2)]
        found = [
            stack.enter_context(proxies(limiter, port, provider, 1))[0]
            for limiter, port in zip((Limiter(), Own(), Ours(*limits)), (0, servers[0].port, servers[1].port))
        ]
        meters = [
            ("none", 0, Meter(None, found[0], key())),
            ("LiteLLM", 3, Meter(servers[0], found[1], key(**own))),
            ("LiteLLM", 9, Meter(servers[0], found[1], key(key_alias="nine", **own, **owners, **more))),
            ("redis-ratelimit", 3, Meter(servers[1], found[2], key(metadata=few))),
            ("redis-ratelimit", 9, Meter(servers[1], found[2], key(metadata=nine, **owners))),
            ("redis-ratelimit", 64, Meter(servers[1], found[2], key(metadata=many, **owners))),
        ]
        for _, _, meter in meters:
            meter.warm()
        for _ in range(ROUNDS):
            for _, _, meter in meters:
                meter.ask(max(1, CALLS // ROUNDS))
        return [(name, count, meter.costs()) for name, count, meter in meters]


def load_table(rows: list[tuple[str, list[Found]]]) -> list[str]:
    columns = [founds[at] for at in range(2) for _, founds in rows]
    names = [name for name, _ in rows] + [f"{name}, {founds[1].runs} runs with faults" for name, founds in rows]
    lines = [f"| | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    cells: dict[str, Any] = {
        "tokens of the budgets": lambda it: it.budget,
        "spent over the budget": lambda it: it.over,
        "used, and not counted": lambda it: it.unreported + it.uncounted,
        "tokens still taken after ten minutes that nobody used": lambda it: it.leaked,
        "places still taken after ten minutes": lambda it: it.places,
        "denials, and requests that they cost": lambda it: f"{it.denials}, {it.charged}",
        "answered, cancelled, cut by a kill": lambda it: ", ".join(
            str(it.outcomes[outcome]) for outcome in ("answered", "cancelled", "cut")
        ),
    }
    return lines + [f"| {name} | {' | '.join(str(cell(it)) for it in columns)} |" for name, cell in cells.items()]


def cost_table(rows: list[tuple[str, int, Costs]]) -> list[str]:
    lines = [
        "| limiter | limits | commands | round trips | server CPU | proxy CPU | p50 | p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    (_, _, none), *others = rows
    lines.append(
        f"| none | | | | | {none.proxy_ms:.1f} ms | {none.percentile(50):.1f} ms | {none.percentile(99):.1f} ms |"
    )
    for name, count, costs in others:
        added = [costs.percentile(percent) - none.percentile(percent) for percent in (50, 99)]
        lines.append(
            f"| {name} | {count} | {costs.commands:.1f} | {costs.reads:.1f} | {costs.server_us:.0f} us "
            f"| {costs.proxy_ms - none.proxy_ms:+.1f} ms | {added[0]:+.1f} ms | {added[1]:+.1f} ms |"
        )
    return lines


def main(pages: list[str]) -> None:
    os.environ.update(WINDOW)
    ours = Ours(*(f"name: {unit}, per: key, {unit}: key.{unit}{each}" for unit, each in UNITS))
    provider = Billing()
    with provider:
        costs = measure_costs(provider)
        print("\n".join(cost_table(costs)), flush=True)
        loads = [(limiter.name, measure_loads(limiter, provider)) for limiter in (ours, Own())][::-1]
    print("\n".join(load_table(loads)))
    for page in pages:
        write_between(Path(page), "costs", cost_table(costs))
        write_between(Path(page), "loads", load_table(loads))
    missed = [
        str(found)
        for found in loads[1][1]
        if found.over > found.unreported or found.uncounted or found.leaked or found.places or found.charged
    ]
    missed += [f"{each.reads:.2f} round trips for {count} limits" for _, count, each in costs[3:] if each.reads > 2.1]
    if missed:
        sys.exit("MISSED: " + "; ".join(missed))


if __name__ == "__main__":
    main(sys.argv[1:])
