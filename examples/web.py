"""A web handler that answers 429 when a client asks too often, and tells every client how it stands.

    pip install redis
    python3 examples/web.py            # then: curl -i http://127.0.0.1:8080/

REDIS_URL (redis://127.0.0.1:6379) and PORT (8080) may be set. Each address may make 30 requests a minute, in bursts of
up to 10. Everybody is let through only while Redis cannot be reached within half a second: a limiter that is down
should not take the site down. All other trouble, such as a flood, is answered with 503. Without the module it does not
start.
"""

import os
import queue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

MAX_BURST, COUNT, PERIOD = 9, 30, 60

# The usual pool raises an error when all its connections are in use. In this one a thread waits until one is free.
pool = redis.BlockingConnectionPool.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
    max_connections=50, timeout=2, socket_connect_timeout=0.5, socket_timeout=0.5, retry=Retry(NoBackoff(), 0),
)
limits = redis.Redis(connection_pool=pool)


def ask(client):
    """The five integers of RL.THROTTLE, or None if Redis cannot be reached."""
    try:
        return limits.execute_command("RL.THROTTLE", f"web:{client}", MAX_BURST, COUNT, PERIOD)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        # Too many requests at once for the pool: the server is there, so this is no reason to let them through.
        if isinstance(error.__context__, queue.Empty):
            raise
        print(f"let through without a limit: {error}", flush=True)
        return None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            answer = ask(self.client_address[0])
        except redis.RedisError as error:
            print(f"refused: {error}", flush=True)
            return self.answer(503, b"try again later\n", {"Retry-After": 1})
        if answer is None:
            return self.answer(200, b"hello\n", {})
        limited, limit, remaining, retry_after, reset_after = answer
        # draft-ietf-httpapi-ratelimit-headers-03, which most clients know.
        headers = {"RateLimit-Limit": limit, "RateLimit-Remaining": remaining, "RateLimit-Reset": reset_after}
        if limited:
            return self.answer(429, b"slow down\n", headers | {"Retry-After": retry_after})
        self.answer(200, b"hello\n", headers)

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": len(body)}).items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


if __name__ == "__main__":
    limits.execute_command("RL.THROTTLE_RO", "web:", MAX_BURST, COUNT, PERIOD)  # an error ends the program
    server = Server(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
