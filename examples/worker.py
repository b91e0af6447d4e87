"""A job worker: however many processes of it run, two jobs run at a time. If a worker dies, its place is free again when
its lease ends. A job does not start without a place, and is stopped if its place cannot be kept.

    pip install redis ./clients/python
    python3 examples/worker.py one two three       # in several terminals at once

REDIS_URL (redis://127.0.0.1:6379) and JOB_SECONDS (2) may be set.
"""

import asyncio
import os
import sys

import redis.asyncio
from redis_ratelimit import semaphore
from redis_ratelimit.asyncio import Limiter

LEASE = 2  # seconds
client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(client, unreachable="raise", deadline=1)


async def run(name):
    print(f"{name} begins", flush=True)
    await asyncio.sleep(float(os.environ.get("JOB_SECONDS", "2")))
    print(f"{name} ends", flush=True)


async def work(name):
    # Waits in line for up to a minute, and raises Denied if no place was free by then.
    async with limiter.acquire("jobs", semaphore(2), lease=f"{LEASE}s", block="1min") as place:
        job = asyncio.create_task(run(name))
        try:
            # Renews the lease three times in its length, until the job is done.
            while not (await asyncio.wait([job], timeout=LEASE / 3))[0]:
                if not await place.renew():
                    raise RuntimeError(f"{name} lost its place")
            await job
        finally:
            job.cancel()


async def main(names):
    await asyncio.gather(*map(work, names))
    await limiter.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
