"""A crawler that sleeps between requests: one page a second from each host, over all processes that run it.

    pip install redis ./clients/python
    python3 examples/crawler.py http://127.0.0.1:8000/a http://127.0.0.1:8000/b

REDIS_URL (redis://127.0.0.1:6379) and PAUSE (1s) may be set. Each page books its turn up to a minute ahead, and learns how
long to sleep until then. The turn stays booked if Redis is restarted with its data. If Redis does not answer, the program
ends with an error.
"""

import asyncio
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

import redis.asyncio
from redis_ratelimit import Rate
from redis_ratelimit.asyncio import Limiter

RATE = Rate(0, 1, os.environ.get("PAUSE", "1s"))
client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(client, unreachable="raise", deadline=5)


async def turn(host):
    """Sleeps until it is this page's turn at the host, and returns how long that took, in milliseconds."""
    slept = 0
    while True:
        # Denied if all turns of the next minute are booked. Then it books nothing, and asks again later.
        reply = await limiter.throttle(f"crawl:{host}", RATE, ahead="1min")
        pause = reply.wait_ms if reply.allowed else reply.retry_after_ms
        await asyncio.sleep(pause / 1000)
        slept += pause
        if reply.allowed:
            return slept


def read(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read()


async def fetch(url):
    slept = await turn(urllib.parse.urlsplit(url).netloc)
    try:
        page = await asyncio.to_thread(read, url)
        print(f"{url}: {len(page)} bytes after {slept} ms", flush=True)
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{url}: {error} after {slept} ms", flush=True)


async def main(urls):
    await asyncio.gather(*map(fetch, urls))
    await limiter.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
