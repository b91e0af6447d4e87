"""A search that each address may use five times a minute, with INCR and EXPIRE.

    pip install Flask redis
    flask --app examples/switch/incr_before run
"""

import os

import redis
from flask import Flask, request

app = Flask(__name__)
client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))


def is_allowed(key):
    count = client.incr(key)
    if count == 1:
        client.expire(key, 60)
    return count <= 5


@app.get("/search")
def search():
    if not is_allowed(f"search:{request.remote_addr}"):
        return "slow down\n", 429
    return f"found {request.args.get('q', '')}"
