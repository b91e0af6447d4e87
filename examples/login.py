"""A login guard: five tries in 15 minutes for each name and address. Tries that are denied count too, so a client that
keeps trying stays out, even with the right password.

    pip install redis ./clients/python
    python3 examples/login.py          # then type lines of: name password

REDIS_URL (redis://127.0.0.1:6379) may be set. The only user here is alice, whose password is "wonderland". While Redis
does not answer, nobody gets in: otherwise an attacker could guess freely whenever it is down. Without the module the
program does not start.
"""

import hmac
import math
import os
import sys

import redis
from redis_ratelimit import Busy, Limiter, Window, client_address

TRIES = Window.per("5/15min")
client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(client, unreachable="raise", deadline=2)


def password_is_right(name, password):
    """Replace this by your own check, which should compare a slow hash."""
    return name == "alice" and hmac.compare_digest(password.encode(), b"wonderland")


def login(name, password, address):
    key = f"login:{client_address(address)}:{name}"
    try:
        # Counts the try before the password is compared: however many come at once, five get that far.
        reply = limiter.window(key, TRIES, count_denied=True)
        if reply.allowed and password_is_right(name, password):
            limiter.reset(key)
            return f"welcome, {name}"
    except (Busy, redis.RedisError) as error:
        print(f"nobody gets in: {error}", file=sys.stderr)
        return "try again later"
    if reply.allowed:
        return f"wrong: {reply.remaining} tries left"
    return f"locked: try again in {math.ceil(reply.retry_after_ms / 1000)} s"


if __name__ == "__main__":
    limiter.window_ro("login:", TRIES)  # an error ends the program
    for line in sys.stdin:
        name, _, password = line.strip().partition(" ")
        print(login(name, password, "127.0.0.1"), flush=True)
