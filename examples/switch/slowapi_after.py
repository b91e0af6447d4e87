"""A search that each address may use five times a minute, with slowapi on redis-ratelimit.

    pip install fastapi slowapi redis uvicorn ./clients/python
    uvicorn --app-dir examples/switch slowapi_after:app

get_remote_address counts each IPv6 address by itself, client_address the network of a client.
"""

import os

import redis_ratelimit.limits  # makes the URI known
from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from redis_ratelimit.fastapi import client_address

limiter = Limiter(
    key_func=client_address,
    strategy="moving-window",
    storage_uri="ratelimit+" + os.environ.get("REDIS_URL", "redis://localhost:6379"),
    headers_enabled=True,
)

app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/search")
@limiter.limit("5/minute")
def search(request: Request, response: Response, q: str = "") -> str:
    return f"found {q}"
