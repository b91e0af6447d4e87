"""A job worker: however many processes of it run, two jobs run at a time. If a worker dies, its place is free again when
its lease ends.

    pip install redis
    python3 examples/worker.py one two three       # in several terminals at once

REDIS_URL (redis://127.0.0.1:6379) and JOB_SECONDS (2) may be set.
"""

import asyncio
import contextlib
import os
import sys

import redis.asyncio

KEY, PLACES, LEASE_MS, PATIENCE_MS = "jobs", 2, 2_000, 60_000


@contextlib.asynccontextmanager
async def place(r):
    """Waits in line for one of the places, and holds it until the block is left."""
    reply = await r.execute_command("RL.ACQUIRE", KEY, PLACES, 0, "LEASE", LEASE_MS, "BLOCK", PATIENCE_MS)
    limited, id = reply[0], reply[5]
    if limited:
        raise TimeoutError(f"no place among {PLACES} within {PATIENCE_MS} ms")
    renewing = asyncio.create_task(renew(r, id, asyncio.current_task()))
    try:
        yield
    finally:
        renewing.cancel()
        await r.execute_command("RL.RELEASE", KEY, id)


async def renew(r, id, job):
    """Starts the lease anew well before it ends, and stops the job if the place was lost after all."""
    with contextlib.suppress(redis.RedisError):
        while await r.execute_command("RL.RENEW", KEY, id):
            await asyncio.sleep(LEASE_MS / 3 / 1000)
    job.cancel(f"lost the place {id}")


async def work(r, name):
    async with place(r):
        print(f"{name} begins", flush=True)
        await asyncio.sleep(float(os.environ.get("JOB_SECONDS", "2")))
        print(f"{name} ends", flush=True)


async def main(names):
    # redis-py gives up on a reply after socket_timeout (5 s from version 8 on), so it must be longer than BLOCK. Each
    # call that waits has a connection of its own from the pool.
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
    timeout = PATIENCE_MS / 1000 + 5
    async with redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=timeout) as r:
        await asyncio.gather(*(work(r, name) for name in names))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
