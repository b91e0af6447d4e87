"""What redis-py asks of an ACL: acl.py one PORT, acl.py cluster PORT or acl.py sentinel PORT_OF_SENTINEL, as user app."""

import asyncio
import sys
import time

import redis
import redis.asyncio
from redis.sentinel import Sentinel

how, port = sys.argv[1], int(sys.argv[2])
USER = {"username": "app", "password": "secret", "health_check_interval": 1}


def try_out(r):
    """Calls with several keys, so that a cluster client goes to several nodes, and a health check before the second round."""
    for _ in range(2):
        for user in range(20):
            key = f"limit:{{{user}}}"
            assert r.execute_command("RL.WINDOW", key, 100, 60)[0] == 0
            assert r.execute_command("RL.THROTTLE", f"{key}:t", 100, 100, 60)[0] == 0
            taken = r.execute_command("RL.ACQUIRE", f"{key}:jobs", 100, 0)
            assert r.execute_command("RL.RELEASE", f"{key}:jobs", taken[5]) == 1
            both = r.execute_command("RL.ALL", 2, key, f"{key}:t", "WINDOW", 100, 60, "THROTTLE", 100, 100, 60)
            assert both[0] == 0, both
        time.sleep(1.1)
    for refused in ("RL.WINDOW", "other", 5, 60), ("DEL", "limit:{1}"), ("GET", "limit:{1}"):
        try:
            raise AssertionError(f"{refused} answered {r.execute_command(*refused)}")
        except redis.exceptions.NoPermissionError:
            pass


async def try_asyncio(r):
    for _ in range(2):
        for user in range(20):
            assert (await r.execute_command("RL.WINDOW", f"limit:{{{user}}}", 100, 60))[0] == 0
        await asyncio.sleep(1.1)
    await r.aclose()


if how == "one":
    for protocol in 2, 3:
        try_out(redis.Redis(port=port, protocol=protocol, **USER))
    asyncio.run(try_asyncio(redis.asyncio.Redis(port=port, **USER)))
elif how == "cluster":
    try_out(redis.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, **USER))
    asyncio.run(try_asyncio(redis.asyncio.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, **USER)))
else:
    sentinel = Sentinel([("127.0.0.1", port)], sentinel_kwargs={"username": "app", "password": "secret"}, **USER)
    try_out(sentinel.master_for("limits"))
    assert sentinel.slave_for("limits").execute_command("RL.WINDOW_RO", "limit:{1}", 100, 60)[0] == 0
    sentinel.discover_slaves("limits")
print(f"redis-py, {how}")
