"""A search that each address may use five times a minute, with Flask-Limiter on redis-ratelimit.

    pip install Flask-Limiter redis ./clients/python
    flask --app examples/switch/flask_limiter_after run

get_remote_address counts each IPv6 address by itself. client_address of redis_ratelimit.flask counts their networks.
"""

import os

import redis_ratelimit.limits  # makes the URI known
from flask import Flask, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    strategy="fixed-window",
    storage_uri="ratelimit+" + os.environ.get("REDIS_URL", "redis://localhost:6379"),
    headers_enabled=True,
)


@app.get("/search")
@limiter.limit("5/minute")
def search():
    return f"found {request.args.get('q', '')}"
