"""A login guard: five tries in 15 minutes for each name and address. Tries that are denied count too, so a client
that keeps trying stays out, and a right password does not help while the door is shut.

    pip install redis
    python3 examples/login.py          # then type lines of: name password

REDIS_URL (redis://127.0.0.1:6379) may be set. The only user here is alice, whose password is "wonderland". While Redis
does not reply, nobody gets in: if the guard let everybody through, guessing would begin when it is down. Without the
module it does not start.
"""

import hmac
import os
import sys

import redis

TRIES, PERIOD = 5, "15min"

# The usual pool raises an error when all its connections are in use. In this one a thread waits until one is free.
url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
limits = redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(url, max_connections=50, timeout=5))


def password_is_right(name, password):
    """Stands for your own check, which should take a slow hash."""
    return name == "alice" and hmac.compare_digest(password.encode(), b"wonderland")


def login(name, password, address):
    key = f"login:{address}:{name}"
    # Counted before the password is looked at: however many come at once, five get that far.
    try:
        denied, _, left, retry_after, _ = limits.execute_command("RL.WINDOW", key, TRIES, PERIOD, "COUNTDENIED")
    except redis.RedisError as error:
        print(f"nobody gets in: {error}", file=sys.stderr)
        return "try again later"
    if denied:
        return f"locked: try again in {retry_after} s"
    if password_is_right(name, password):
        limits.delete(key)
        return f"welcome, {name}"
    return f"wrong: {left} tries left"


if __name__ == "__main__":
    limits.execute_command("RL.WINDOW_RO", "login:", TRIES, PERIOD)  # an error ends the program
    for line in sys.stdin:
        name, _, password = line.strip().partition(" ")
        print(login(name, password, "127.0.0.1"), flush=True)
