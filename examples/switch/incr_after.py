"""A search that each address may use five times a minute, with redis-ratelimit.

    pip install Flask redis ./clients/python
    flask --app examples/switch/incr_after run
"""

import os

import redis
from flask import Flask, request
from redis_ratelimit import Limiter, Window
from redis_ratelimit.flask import client_address

app = Flask(__name__)
client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
limiter = Limiter(client, unreachable="raise", deadline=1)
WINDOW = Window(5, 60, fixed=True, start="first")


def is_allowed(key):
    return limiter.window(key, WINDOW).allowed


@app.get("/search")
def search():
    if not is_allowed(f"search:{client_address()}"):
        return "slow down\n", 429
    return f"found {request.args.get('q', '')}"
