"""A job worker: however many processes of it run, two jobs run at a time. If a worker dies, its place is free again
when its lease ends. A job that cannot ask Redis does not run, and one that loses its place is stopped.

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
async def place(line, r):
    """Waits in line for one of the places, and holds it until the block is left."""
    reply = await line.execute_command("RL.ACQUIRE", KEY, PLACES, 0, "LEASE", LEASE_MS, "BLOCK", PATIENCE_MS)
    limited, id = reply[0], reply[5]
    if limited:
        raise TimeoutError(f"no place among {PLACES} within {PATIENCE_MS} ms")
    job = asyncio.current_task()

    def stop(_):
        job.cancel(f"lost the place {id}")

    renewing = asyncio.create_task(renew(r, id))
    renewing.add_done_callback(stop)
    try:
        yield
    finally:
        # First, as a renewal may be under way that arrives when the place was given back.
        renewing.remove_done_callback(stop)
        renewing.cancel()
        with contextlib.suppress(redis.RedisError):  # the lease ends anyway
            await r.execute_command("RL.RELEASE", KEY, id)


async def renew(r, id):
    """Renews the lease well before it ends, for as long as the place is held."""
    with contextlib.suppress(redis.RedisError):
        while await r.execute_command("RL.RENEW", KEY, id):
            await asyncio.sleep(LEASE_MS / 3 / 1000)


async def work(line, r, name):
    async with place(line, r):
        print(f"{name} begins", flush=True)
        await asyncio.sleep(float(os.environ.get("JOB_SECONDS", "2")))
        print(f"{name} ends", flush=True)


def client(connections, timeout):
    """The usual pool raises an error when all its connections are in use. Here a call waits until one is free."""
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url, max_connections=connections, timeout=None, socket_timeout=timeout, decode_responses=True
    )
    return redis.asyncio.Redis.from_pool(pool)


async def main(names):
    # Each call that waits has a connection for itself, so renewing and giving back must have others. redis-py gives up
    # on a reply after socket_timeout (5 s from version 8 on), so that must be longer than BLOCK.
    async with client(20, PATIENCE_MS / 1000 + 5) as line, client(20, 5) as r:
        await asyncio.gather(*(work(line, r, name) for name in names))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
