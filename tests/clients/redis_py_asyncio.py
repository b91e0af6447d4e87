"""Runs every case and every way to wait with redis-py's asyncio: redis_py_asyncio.py PORT_WITH_HELD_CLOCK PORT."""

import asyncio
import sys
import time

import redis.asyncio
from redis_py import CASES, as_eval, check


async def one_by_one(r, wrap):
    replies = []
    for call, _ in CASES:
        try:
            replies.append(await r.execute_command(*wrap(*call.split())))
        except redis.ResponseError as error:
            replies.append(error)
    return replies


async def at_once(r, transaction):
    async with r.pipeline(transaction=transaction) as pipe:
        for call, _ in CASES:
            pipe.execute_command(*call.split())
        return await pipe.execute(raise_on_error=False)


async def every_case(r, protocol):
    modes = {
        "plain": lambda: one_by_one(r, lambda *words: words),
        "pipelined": lambda: at_once(r, transaction=False),
        "in a transaction": lambda: at_once(r, transaction=True),
        "from a script": lambda: one_by_one(r, as_eval),
    }
    for mode, run in modes.items():
        await r.flushall()
        check(f"RESP{protocol} {mode}", await run())


async def waiting(r):
    await r.flushall()

    async def until_waiting(count):
        while (await r.info("ratelimit"))["ratelimit_waiting"] != count:
            await asyncio.sleep(0.01)

    # Granted when their turn comes: each of five waits on a connection of its own.
    begin = time.monotonic()
    mail = ("RL.THROTTLE", "mail", 0, 10, 1, "BLOCK", 60000)
    replies = await asyncio.gather(*[r.execute_command(*mail) for _ in range(5)])
    took = time.monotonic() - begin
    assert all(reply[0] == 0 for reply in replies) and took > 0.399, (replies, took)

    # Denied when its time is up.
    assert (await r.execute_command("RL.ACQUIRE", "job", 1, 0, "ID", "first"))[5] == "first"
    begin = time.monotonic()
    reply = await r.execute_command("RL.ACQUIRE", "job", 1, 0, "BLOCK", 200)
    took = time.monotonic() - begin
    assert reply[0] == 2 and reply[5] is None and took > 0.199, (reply, took)

    # Granted as soon as somebody gives back.
    words = ("RL.ACQUIRE", "job", 1, 0, "ID", "second", "LEASE", 60000, "BLOCK", 60000)
    second = asyncio.create_task(r.execute_command(*words))
    await until_waiting(1)
    assert await r.execute_command("RL.RELEASE", "job", "first") == 1
    assert (await second)[5] == "second"

    # A cancelled call hangs up, and takes nothing when its turn would have come.
    try:
        call = r.execute_command("RL.ACQUIRE", "job", 1, 0, "BLOCK", 60000)
        raise AssertionError(f"{await asyncio.wait_for(call, 0.2)} came before the timeout")
    except asyncio.TimeoutError:
        pass
    await until_waiting(0)
    assert await r.execute_command("RL.RELEASE", "job", "second") == 1
    assert await r.execute_command("RL.HELD", "job") == []


async def main(held, port):
    for protocol in 2, 3:
        async with redis.asyncio.Redis(port=held, protocol=protocol, decode_responses=True) as r:
            await every_case(r, protocol)
        async with redis.asyncio.Redis(port=port, protocol=protocol, decode_responses=True) as r:
            await waiting(r)
    print(f"{len(CASES)} cases with redis-py {redis.__version__} and asyncio")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
