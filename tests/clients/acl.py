"""What redis-py asks of an ACL: acl.py one PORT, acl.py cluster PORT or acl.py sentinel PORT_OF_SENTINEL, as user app."""

import asyncio
import inspect
import sys

import redis
import redis.asyncio
from redis.sentinel import Sentinel

how, port = sys.argv[1], int(sys.argv[2])
USER = {"username": "app", "password": "secret", "health_check_interval": 1}


async def try_out(r):
    """Calls with several keys, so that a cluster client goes to several nodes, and a health check before the second round."""

    async def ask(*words):
        answer = r.execute_command(*words)
        return await answer if inspect.isawaitable(answer) else answer

    for _ in range(2):
        for user in range(20):
            key = f"limit:{{{user}}}"
            assert (await ask("RL.WINDOW", key, 100, 60))[0] == 0
            assert (await ask("RL.THROTTLE", f"{key}:t", 100, 100, 60))[0] == 0
            taken = await ask("RL.ACQUIRE", f"{key}:jobs", 100, 0)
            assert (await ask("RL.RELEASE", f"{key}:jobs", taken[5])) == 1
            both = await ask("RL.ALL", 2, key, f"{key}:t", "WINDOW", 100, 60, "THROTTLE", 100, 100, 60)
            assert both[0] == 0, both
        await asyncio.sleep(1.1)
    for refused in ("RL.WINDOW", "other", 5, 60), ("DEL", "limit:{1}"), ("GET", "limit:{1}"):
        try:
            raise AssertionError(f"{refused} answered {await ask(*refused)}")
        except redis.exceptions.NoPermissionError:
            pass
    if hasattr(r, "aclose"):
        await r.aclose()


if how == "one":
    for protocol in 2, 3:
        asyncio.run(try_out(redis.Redis(port=port, protocol=protocol, **USER)))
    asyncio.run(try_out(redis.asyncio.Redis(port=port, **USER)))
elif how == "cluster":
    for library in redis, redis.asyncio:
        asyncio.run(try_out(library.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, **USER)))
else:
    sentinel = Sentinel([("127.0.0.1", port)], sentinel_kwargs={"username": "app", "password": "secret"}, **USER)
    asyncio.run(try_out(sentinel.master_for("limits")))
    assert sentinel.slave_for("limits").execute_command("RL.WINDOW_RO", "limit:{1}", 100, 60)[0] == 0
    sentinel.discover_slaves("limits")
print(f"redis-py, {how}")
