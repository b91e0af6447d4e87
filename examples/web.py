"""A web handler that answers 429 when a client asks too often, and tells every client how it stands.

    pip install redis
    python3 examples/web.py            # then: curl -i http://127.0.0.1:8080/

REDIS_URL (redis://127.0.0.1:6379) and PORT (8080) may be set. Each address may make 30 requests a minute, in bursts of
up to 10. While Redis does not answer, everybody is let through: a limiter that is down should not take the site down.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis

MAX_BURST, COUNT, PERIOD = 9, 30, 60

limits = redis.Redis.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), socket_connect_timeout=0.5, socket_timeout=0.5
)


def ask(client):
    """The five integers of RL.THROTTLE, or None if Redis cannot be asked."""
    try:
        return limits.execute_command("RL.THROTTLE", f"web:{client}", MAX_BURST, COUNT, PERIOD)
    except redis.RedisError as error:
        print(f"let through without a limit: {error}")
        return None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answer = ask(self.client_address[0])
        denied = answer is not None and answer[0] != 0
        body = b"slow down\n" if denied else b"hello\n"
        self.send_response(429 if denied else 200)
        if answer is not None:
            _, limit, remaining, retry_after, reset_after = answer
            # draft-ietf-httpapi-ratelimit-headers-03, which most clients know.
            self.send_header("RateLimit-Limit", str(limit))
            self.send_header("RateLimit-Remaining", str(remaining))
            self.send_header("RateLimit-Reset", str(reset_after))
            if denied:
                self.send_header("Retry-After", str(retry_after))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8080"))
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/")
    server.serve_forever()
