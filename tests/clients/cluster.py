"""Finds the node of each key with the cluster clients of redis-py: cluster.py PORT."""

import asyncio
import sys

import redis
import redis.asyncio

port = int(sys.argv[1])


def calls(client):
    for user in range(50):
        for limited in 0, 0, 1:
            yield limited, ("RL.WINDOW", f"{client}:{user}", 2, "1h")


with redis.RedisCluster(host="127.0.0.1", port=port) as r:
    for limited, words in calls("plain"):
        assert r.execute_command(*words)[0] == limited, words


async def main():
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as r:
        for limited, words in calls("asyncio"):
            assert (await r.execute_command(*words))[0] == limited, words


asyncio.run(main())
print("50 keys with each cluster client of redis-py")
