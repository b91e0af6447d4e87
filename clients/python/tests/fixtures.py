"""The tables of clients/spec, which test all clients, and tools to run their cases with this client."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import redis_ratelimit
import redis_ratelimit.asyncio
from redis_ratelimit import AllReply, Clause, Rate, Reply, Window

#: The client libraries that are installed.
LIBRARIES = [name for name in ("redis", "valkey") if find_spec(name)]

FOLDER = Path(__file__).parents[2] / "spec"
CASES: list[dict[str, Any]] = [
    case for name in ("cases.json", "insight.json") for case in json.loads((FOLDER / name).read_text("utf-8"))
]
HEADERS: list[dict[str, Any]] = json.loads((FOLDER / "headers.json").read_text("utf-8"))
#: Calls with several limits, and how their reservations are settled as one.
SEVERAL: list[dict[str, Any]] = json.loads((FOLDER / "several.json").read_text("utf-8"))
#: Wrong arguments: "type" is a TypeError, "value" a ValueError.
MISTAKES: list[dict[str, Any]] = json.loads((FOLDER / "mistakes.json").read_text("utf-8"))
SPOKEN: list[dict[str, Any]] = json.loads((FOLDER / "spoken.json").read_text("utf-8"))
#: Several limits that were asked for one request, and the headers of its response.
HTTP: list[dict[str, Any]] = json.loads((FOLDER / "http.json").read_text("utf-8"))
#: Addresses of peers with the header X-Forwarded-For, and the address of the client.
ADDRESSES: list[dict[str, Any]] = json.loads((FOLDER / "addresses.json").read_text("utf-8"))
#: The header Retry-After of another service, and how long to wait.
RETRY_AFTER: list[dict[str, Any]] = json.loads((FOLDER / "retry_after.json").read_text("utf-8"))
#: The numbers that all clients share. Their names have the units.
NUMBERS: dict[str, Any] = json.loads((FOLDER / "numbers.json").read_text("utf-8"))


def limit(case: Any) -> Any:
    if isinstance(case, str):
        return case
    if "rate" in case:
        return Rate(*case["rate"])
    amount, period, options = case["window"]
    return Window(amount, period, **options)


def reply(fields: dict[str, Any]) -> Reply:
    """Returns the reply that a case describes."""
    if "answers" in fields:
        return AllReply(**{**fields, "answers": tuple(map(reply, fields["answers"]))})
    return Reply(**fields)


def as_list(value: str) -> list[Any]:
    """Parses a structured field with an independent parser."""
    import http_sf  # Not there with older versions of client libraries.

    return cast("list[Any]", http_sf.parse(value.encode("ascii"), tltype="list"))


def arguments(case: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of the method that a case calls."""
    if "clauses" in case:
        clauses = [[*map(clause, each)] if isinstance(each, list) else clause(each) for each in case["clauses"]]
        force = {"force": case["force"]} if "force" in case else {}
        return [clauses], {**durations(case.get("options", {})), **force}
    positional = [case["key"]] if "key" in case else []
    if "limit" in case:
        positional.append(limit(case["limit"]))
    positional += case.get("ids", [])
    if "quantity" in case:
        positional.append(case["quantity"])
    if "duration" in case:
        positional += durations({"duration": case["duration"]}).values()
    return positional, durations(case.get("options", {}))


def durations(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a case, in which bare numbers of durations are milliseconds."""
    names = "block", "lease", "ban", "ahead", "duration"
    return {
        name: timedelta(milliseconds=value) if name in names and type(value) is int else value
        for name, value in options.items()
    }


def clause(case: dict[str, Any]) -> Clause:
    positional, options = arguments(case)
    made: Clause = getattr(Clause, case["clause"])(*positional, **options)
    return made


def unexpected(reply: list[Any]) -> list[Any]:
    """Returns what a server might send instead of a reply to RL.ACQUIRE with ATMOST or to one of the commands without it."""
    wrong: dict[int, list[Any]] = {0: ["1", None], 1: ["9", -1], 2: [[]], 3: ["1"], 4: [None], 6: [-1, True], 7: ["1"]}
    one_wrong = [
        [*reply[:at], value, *reply[at + 1 :]] for at, values in wrong.items() if at < len(reply) for value in values
    ]
    return [None, 7, b"text", {}, [], reply[:3], *one_wrong]


def differences(found: Any, expected: Any) -> list[str]:
    """Returns the differences between a reply and what a case says that it means. A case has only some of the fields."""
    if isinstance(expected, dict):
        return [
            f"{name}: {each}" for name, value in expected.items() for each in differences(getattr(found, name), value)
        ]
    if isinstance(expected, list):
        if len(found) != len(expected):
            return [f"{found!r} has not {len(expected)} elements"]
        return [each for pair in zip(found, expected) for each in differences(*pair)]
    right = type(found) is type(expected) and found == expected
    return [] if right else [f"{found!r} is not {expected!r}"]


def read_value(file: IO[bytes]) -> Any:
    """Reads a value of RESP2. Bytes that are no text are escaped."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server hung up")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"$":
        return None if rest == "-1" else file.read(int(rest) + 2)[:-2].decode("utf-8", "backslashreplace")
    if kind == b"*":
        return [read_value(file) for _ in range(int(rest))]
    if kind == b"-":
        return RuntimeError(rest)
    return int(rest) if kind == b":" else rest


def make(library: str, folder: str = "", *, cluster: bool = False, **settings: Any) -> Any:
    """Returns a client. `folder` is "" or ".asyncio"."""
    name = {"redis": "Redis", "valkey": "Valkey"}[library] + ("Cluster" if cluster else "")
    return getattr(import_module(library + folder), name)(**settings)


def write_between(page: Path, mark: str, lines: list[str]) -> None:
    """Writes lines into a page, between two comments with a mark."""
    text = page.read_text("utf-8")
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    assert text.count(begin) == text.count(end) == 1, page
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text("\n".join([before + begin, *lines, "", end + after]), "utf-8")


async def done(answer: Any) -> Any:
    """Returns the answer of a method of either limiter."""
    return await answer if inspect.isawaitable(answer) else answer


async def close(limiter: Any) -> None:
    await done(limiter.aclose() if hasattr(limiter, "aclose") else limiter.close())


class Recorder:
    """Replaces a server: records the commands that are sent, and returns its replies in turn."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.sent: list[str] = []
        #: The number of connections that were made.
        self.connections = 0
        #: The ids that the limiter made, and the commands that release what was lost.
        self.made: set[str] = set()
        self.released: list[str] = []

    def note(self, packed: list[bytes]) -> None:
        """Records commands without the ids that the limiter makes."""
        file = io.BytesIO(b"".join(packed))
        sent = []
        while file.tell() < len(file.getvalue()):
            sent.append(" ".join(read_value(file)))
        releases = [words for words in sent if words.startswith("RL.RELEASE ")]
        if releases and {words.split()[-1] for words in releases} <= self.made:
            # The limiter releases what was lost in the background.
            self.released += releases
            many = ["OK", *["QUEUED"] * len(releases), [1] * len(releases)]
            self.replies[:0] = many if len(sent) > 1 else [1]
            return
        self.made |= {each for words in sent for each in re.findall(r" ID ([\w-]{16})(?= )", words)}
        self.sent += [re.sub(r" ID [\w-]{16}(?= )", "", words) for words in sent]

    def answer(self) -> Any:
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def client(self, library: str = LIBRARIES[0]) -> Any:
        """Returns a client whose connections are this recorder."""
        return make(
            library, connection_pool=import_module(library).ConnectionPool(connection_class=self.connection_class())
        )

    def connection_class(self) -> Any:
        """Returns a class of synchronous connections."""
        recorder = self

        class Connection:
            pid = os.getpid()
            is_connected = False

            def __init__(self, **settings: Any) -> None:
                pass

            def should_reconnect(self) -> bool:
                return False

            def re_auth(self) -> None:
                pass

            def connect(self) -> None:
                recorder.connections += not self.is_connected
                self.is_connected = True

            def disconnect(self, nowait: bool = False) -> None:
                self.is_connected = False

            def can_read(self, timeout: float | None = 0) -> bool:
                return timeout != 0

            can_read_destructive = can_read

            def send_packed_command(self, packed: list[bytes], check_health: bool = True) -> None:
                recorder.note(packed)

            def read_response(self) -> Any:
                return recorder.answer()

        return Connection

    def limiter(self, **options: Any) -> redis_ratelimit.Limiter:
        return redis_ratelimit.Limiter(self.client(), **options)


def awaitable(function: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class AsyncRecorder(Recorder):
    def client(self, library: str = LIBRARIES[0]) -> Any:
        class Connection(self.connection_class()):  # type: ignore[misc]
            pass

        names = "connect", "disconnect", "can_read", "can_read_destructive", "send_packed_command", "read_response"
        for name in *names, "re_auth":
            setattr(Connection, name, awaitable(getattr(Connection, name)))
        pool = import_module(f"{library}.asyncio").ConnectionPool(connection_class=Connection)
        return make(library, ".asyncio", connection_pool=pool)

    def limiter(self, **options: Any) -> Any:
        return redis_ratelimit.asyncio.Limiter(self.client(), **options)


@asynccontextmanager
async def entered(handle: Any) -> AsyncIterator[Any]:
    """Enters a reservation of either kind. The methods of a synchronous one run in a thread."""
    if hasattr(handle, "__aenter__"):
        async with handle:
            yield handle
        return
    await asyncio.to_thread(handle.__enter__)
    try:
        yield handle
    except BaseException as error:
        await asyncio.to_thread(handle.__exit__, type(error), error, None)
        raise
    await asyncio.to_thread(handle.__exit__, None, None, None)


class Awaited:
    """Makes the methods of a synchronous limiter awaitable, so that one test is for both kinds. They run in threads."""

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self.limiter, name))

    @asynccontextmanager
    async def acquire(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with entered(self.limiter.acquire(*args, **kwargs)) as job:
            yield Awaited(job)


def settled(
    replies: list[Any], *limits: Any, work: Any = lambda job: None, unreachable: Any = "raise", **options: Any
) -> list[str]:
    """Returns the commands that a block sends after it has reserved, and how it ends. Asserts that both limiters do the
    same."""
    outcomes: list[list[str]] = []
    for kind in Recorder, AsyncRecorder:
        recorder = kind(*replies)

        async def run(recorder: Recorder = recorder) -> str:
            try:
                async with entered(recorder.limiter(unreachable=unreachable).acquire(*limits, **options)) as job:
                    await done(work(job))
            except Exception as error:
                return type(error).__name__
            return "done"

        outcome = asyncio.run(run())
        outcomes.append([*recorder.sent[1:], outcome])
    assert outcomes[0] == outcomes[1], outcomes
    return outcomes[0]
