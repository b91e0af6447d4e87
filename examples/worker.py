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

client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(client, unreachable="raise", deadline=1)


async def run(name):
    print(f"{name} begins", flush=True)
    await asyncio.sleep(float(os.environ.get("JOB_SECONDS", "2")))
    print(f"{name} ends", flush=True)


async def work(name):
    # Waits in line for up to a minute, and raises Denied if no place was free by then.
    async with limiter.acquire("jobs", semaphore(2), lease="2s", block="1min") as place:
        # The lease is renewed until the job is done.
        job, lost = asyncio.create_task(run(name)), asyncio.create_task(place.lost.wait())
        try:
            await asyncio.wait([job, lost], return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise RuntimeError(f"{name} lost its place")
            await job
        finally:
            job.cancel()
            lost.cancel()


async def main(names):
    await asyncio.gather(*map(work, names))
    await limiter.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
