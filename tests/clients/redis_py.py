"""Runs every case and every way to wait with redis-py, also with its asyncio: redis_py.py PORT_WITH_HELD_CLOCK PORT."""

import asyncio
import inspect
import json
import pathlib
import sys
import time

import redis.asyncio
from redis.backoff import NoBackoff

CASES = json.loads(pathlib.Path(__file__).with_name("cases.json").read_text("utf-8"))
SCRIPT = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))"


def as_eval(name, key, *rest):
    return "EVAL", SCRIPT, 1, key, name, *rest


class Client:
    """A client of either kind, whose calls are awaited."""

    def __init__(self, kind, port, protocol, **options):
        self.redis = kind(port=port, protocol=protocol, decode_responses=True, **options)
        self.is_async = kind is redis.asyncio.Redis

    async def call(self, function, *arguments):
        if self.is_async:
            return await function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    async def __call__(self, *words):
        return await self.call(self.redis.execute_command, *words)

    async def one_by_one(self, wrap):
        replies = []
        for call, _ in CASES:
            try:
                replies.append(await self(*wrap(*call.split())))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    async def at_once(self, transaction):
        pipe = self.redis.pipeline(transaction=transaction)
        for call, _ in CASES:
            pipe.execute_command(*call.split())
        return await self.call(pipe.execute, False)

    async def until_waiting(self, count):
        while (await self.call(self.redis.info, "ratelimit"))["ratelimit_waiting"] != count:
            await asyncio.sleep(0.01)

    async def close(self):
        await self.call(self.redis.aclose if self.is_async else self.redis.close)


def check(mode, replies):
    assert len(replies) == len(CASES), mode
    for (call, expected), reply in zip(CASES, replies):
        if isinstance(expected, dict):
            right = isinstance(reply, redis.ResponseError) and expected["error"] in str(reply)
        else:
            right = reply == expected
        assert right, f"{mode}: {call} answered {reply!r}, not {expected!r}"


async def every_case(r, protocol):
    modes = {
        "plain": lambda: r.one_by_one(lambda *words: words),
        "pipelined": lambda: r.at_once(transaction=False),
        "in a transaction": lambda: r.at_once(transaction=True),
        "from a script": lambda: r.one_by_one(as_eval),
    }
    for mode, run in modes.items():
        await r("FLUSHALL")
        check(f"RESP{protocol} {mode}", await run())
    await r.close()


async def waiting(kind, port, protocol):
    r = Client(kind, port, protocol)
    await r("FLUSHALL")

    # Granted when their turn comes: each of five waits on a connection of its own.
    begin = time.monotonic()
    mail = ("RL.THROTTLE", "mail", 0, 10, 1, "BLOCK", 60000)
    replies = await asyncio.gather(*[r(*mail) for _ in range(5)])
    took = time.monotonic() - begin
    assert all(reply[0] == 0 for reply in replies) and took > 0.399, (replies, took)

    # Denied when its time is up.
    assert (await r("RL.ACQUIRE", "job", 1, 0, "ID", "first"))[5] == "first"
    begin = time.monotonic()
    reply = await r("RL.ACQUIRE", "job", 1, 0, "BLOCK", 200)
    took = time.monotonic() - begin
    assert reply[0] == 2 and reply[5] is None and took > 0.199, (reply, took)

    # Granted as soon as somebody gives back.
    second = asyncio.create_task(r("RL.ACQUIRE", "job", 1, 0, "ID", "second", "LEASE", 60000, "BLOCK", 60000))
    await r.until_waiting(1)
    assert await r("RL.RELEASE", "job", "first") == 1
    assert (await second)[5] == "second"

    # A client that is the first to lose patience hangs up, and takes nothing when its turn would have come.
    retry = (redis.asyncio.retry if r.is_async else redis.retry).Retry(NoBackoff(), 0)
    hasty = Client(kind, port, protocol, socket_timeout=0.2, retry=retry)
    try:
        reply = await hasty("RL.ACQUIRE", "job", 1, 0, "BLOCK", 60000)
        raise AssertionError(f"{reply} came before the client's own timeout")
    except redis.TimeoutError:
        pass
    await r.until_waiting(0)
    assert await r("RL.RELEASE", "job", "second") == 1
    assert await r("RL.HELD", "job") == []
    await hasty.close()
    await r.close()


async def main(held, port):
    for kind, name in (redis.Redis, "redis-py"), (redis.asyncio.Redis, "its asyncio"):
        for protocol in 2, 3:
            await every_case(Client(kind, held, protocol), protocol)
            await waiting(kind, port, protocol)
        print(f"{len(CASES)} cases with {name}, {redis.__version__}")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
