"""A search that each address may use five times a minute, with Flask-Limiter on redis-ratelimit.

    pip install Flask-Limiter redis ./clients/python
    flask --app examples/switch/flask_limiter_after run

get_remote_address counts each IPv6 address by itself, client_address the network of a client.
"""

import os

import redis_ratelimit.limits  # makes the URI known
from flask import Flask, request
from flask_limiter import Limiter
from redis_ratelimit.flask import client_address

app = Flask(__name__)
limiter = Limiter(
    client_address,
    app=app,
    strategy="fixed-window",
    storage_uri="ratelimit+" + os.environ.get("REDIS_URL", "redis://localhost:6379"),
    headers_enabled=True,
)


@app.get("/search")
@limiter.limit("5/minute")
def search():
    return f"found {request.args.get('q', '')}"
