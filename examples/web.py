"""A web handler that answers 429 when a client asks too often, and tells every client how much is left.

    pip install redis ./clients/python
    python3 examples/web.py            # then: curl -i -H "X-Api-Key: acme-1" http://127.0.0.1:8080/

REDIS_URL (redis://127.0.0.1:6379) and PORT (8080) may be set. Each request takes from three limits at once, or from none
if one of them denies it. While Redis does not answer, everybody is let through: a limiter that is down should not take
the site down. An overload and an error of Redis, such as for a wrong password, let nobody through: they are answered with
503. Without the module the program does not start.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis
from redis_ratelimit import Busy, Clause, Limiter, Rate, Window, client_address, headers, problem

# Replace this by your own accounts. A client without a key is a visitor, and all visitors together are one tenant.
TENANTS = {"acme-1": "acme", "zebra-1": "zebra"}
LIMITS = [Rate.per("30/min", capacity=10), Window.per("200/min"), Window.per("5000/day", fixed=True)]
NAMES = ["address", "minute", "day"]

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(client, unreachable="allow", deadline=0.5)


def clauses(tenant, address):
    """The limits of a request. In a cluster all keys of a call must be in one slot, so they have the same text in braces."""
    of_address, of_minute, of_day = LIMITS
    return [
        Clause.throttle(f"web:{{{tenant}}}:{address}", of_address),
        Clause.window(f"web:{{{tenant}}}:minute", of_minute),
        Clause.window(f"web:{{{tenant}}}:day", of_day),
    ]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        tenant = TENANTS.get(self.headers.get("X-Api-Key"), "visitors")
        try:
            # Behind a proxy: client_address(self.client_address[0], self.headers.get("X-Forwarded-For"), proxies=1)
            reply = limiter.all(clauses(tenant, client_address(self.client_address[0])))
        except (Busy, redis.RedisError) as error:
            print(f"refused: {error}", flush=True)
            return self.refuse(problem(), {"Retry-After": 1})
        if not reply.reachable:
            print("let through without a limit: Redis does not answer", flush=True)
        fields = headers(reply, LIMITS, NAMES)
        if not reply.allowed:
            return self.refuse(problem(reply, LIMITS, NAMES), fields)
        self.answer(200, "text/plain", "hello\n", fields)

    def refuse(self, details, fields):
        self.answer(details["status"], "application/problem+json", json.dumps(details), fields)

    def answer(self, status, content_type, text, fields):
        body = text.encode()
        self.send_response(status)
        for name, value in {**fields, "Content-Type": content_type, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


if __name__ == "__main__":
    limiter.all_ro(clauses("visitors", ""))  # an error ends the program
    server = Server(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
