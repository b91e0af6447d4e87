"""A web handler that answers 429 when a client asks too often, and tells every client how much is left.

    pip install redis
    python3 examples/web.py            # then: curl -i -H "X-Api-Key: acme-1" http://127.0.0.1:8080/

REDIS_URL (redis://127.0.0.1:6379) and PORT (8080) may be set. Three limits are asked at once, and a request that one of
them denies counts in none. Everybody is let through only while Redis cannot be reached within half a second: a limiter
that is down should not take the site down. All other trouble, such as a flood, is answered with 503. Without the module
it does not start.
"""

import os
import queue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# Stands for your own accounts. Who has no key is a visitor, and all visitors together are one tenant.
TENANTS = {"acme-1": "acme", "zebra-1": "zebra"}
LIMITS = {
    "10 at once and 30 a minute from one address": "THROTTLE 9 30 1min",
    "200 in a minute": "WINDOW 200 1min",
    "5000 a day": "WINDOW 5000 1d FIXED",
}
CLAUSES = " ".join(LIMITS.values()).split()

# The usual pool raises an error when all its connections are in use. In this one a thread waits until one is free.
pool = redis.BlockingConnectionPool.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
    max_connections=50, timeout=2, socket_connect_timeout=0.5, socket_timeout=0.5, retry=Retry(NoBackoff(), 0),
)
limits = redis.Redis(connection_pool=pool)


def keys(tenant, address):
    """A key for each limit. What is in braces places all of them on one node of a cluster."""
    return f"web:{{{tenant}}}:{address}", f"web:{{{tenant}}}:minute", f"web:{{{tenant}}}:day"


def ask(tenant, address):
    """The reply of RL.ALL, or None if Redis cannot be reached."""
    try:
        return limits.execute_command("RL.ALL", len(LIMITS), *keys(tenant, address), *CLAUSES)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        # Too many requests at once for the pool: the server is there, so this is no reason to let them through.
        if isinstance(error.__context__, queue.Empty):
            raise
        print(f"let through without a limit: {error}", flush=True)
        return None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        tenant = TENANTS.get(self.headers.get("X-Api-Key"), "visitors")
        try:
            reply = ask(tenant, self.client_address[0])
        except redis.RedisError as error:
            print(f"refused: {error}", flush=True)
            return self.answer(503, "try again later", {"Retry-After": 1})
        if reply is None:
            return self.answer(200, "hello", {})
        # All of the clause that decides: the one that denies the longest, or else the one with the least left.
        limited, limit, remaining, retry_after, reset_after, clause, _ = reply
        # draft-ietf-httpapi-ratelimit-headers-03, which most clients know.
        headers = {"RateLimit-Limit": limit, "RateLimit-Remaining": remaining, "RateLimit-Reset": reset_after}
        if limited:
            name = list(LIMITS)[clause - 1]
            return self.answer(429, f"slow down: {name}", headers | {"Retry-After": retry_after})
        self.answer(200, "hello", headers)

    def answer(self, status, text, headers):
        body = f"{text}\n".encode()
        self.send_response(status)
        for name, value in (headers | {"Content-Length": len(body)}).items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


if __name__ == "__main__":
    limits.execute_command("RL.ALL_RO", len(LIMITS), *keys("visitors", ""), *CLAUSES)  # an error ends the program
    server = Server(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
