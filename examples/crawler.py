"""A crawler that sleeps between requests: one page a second from each host, over all processes that run it.

    pip install redis
    python3 examples/crawler.py http://127.0.0.1:8000/a http://127.0.0.1:8000/b

REDIS_URL (redis://127.0.0.1:6379) and PAUSE (1s) may be set. Each page books its turn up to a minute ahead, learns how
long to sleep, and holds no connection to Redis meanwhile. The turn stays booked if Redis is restarted with its data. If
Redis cannot be asked, nothing is fetched.
"""

import asyncio
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

import redis.asyncio

PAUSE, AHEAD = os.environ.get("PAUSE", "1s"), "1min"


async def turn(r, host):
    """Sleeps until it is this page's turn at the host, and answers how long that was, in milliseconds."""
    slept = 0
    while True:
        rate = 0, 1, PAUSE
        reply = await r.execute_command("RL.THROTTLE", f"crawl:{host}", *rate, 1, "AHEAD", AHEAD, "MS")
        limited, _, _, retry_after, _, wait = reply
        # Denied if all turns of the minute are taken. Then nothing is booked, and it asks again.
        pause = retry_after if limited else wait
        await asyncio.sleep(pause / 1000)
        slept += pause
        if not limited:
            return slept


def read(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read()


async def fetch(r, url):
    slept = await turn(r, urllib.parse.urlsplit(url).netloc)
    try:
        page = await asyncio.to_thread(read, url)
        print(f"{url}: {len(page)} bytes after {slept} ms", flush=True)
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{url}: {error} after {slept} ms", flush=True)


async def main(urls):
    # The usual pool raises an error when all its connections are in use. Here a call waits until one is free.
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=10, timeout=None)
    async with redis.asyncio.Redis.from_pool(pool) as r:
        await asyncio.gather(*(fetch(r, url) for url in urls))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
