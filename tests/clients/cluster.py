"""Finds the node of each key with the cluster clients of redis-py: cluster.py PORT."""

import asyncio
import sys

import redis
import redis.asyncio

port = int(sys.argv[1])
USERS = 50


def single(client):
    for user in range(USERS):
        for limited in 0, 0, 1:
            yield limited, ("RL.WINDOW", f"{client}:{user}", 2, "1h")


def several(client):
    """Two limits of one slot: limited, the words, and one of the keys."""
    for user in range(USERS):
        keys = f"{{{client}:{user}}}:all:rate", f"{{{client}:{user}}}:all:jobs"
        for limited in 0, 0, 1:
            yield limited, ("RL.ALL", 2, *keys, "WINDOW", 2, "1h", "ACQUIRE", 9, 0), keys[0]


CROSS_SLOT = "RL.ALL", 2, "foo", "bar", "WINDOW", 2, "1h", "WINDOW", 2, "1h"


def counted(nodes):
    """How many calls were redirected, and how often a client asked for the keys of a command."""
    moved = asked = 0
    for node in nodes:
        with redis.Redis(port=node.port) as r:
            moved += r.info("errorstats").get("errorstat_MOVED", {}).get("count", 0)
            # Redis 6.2 counts COMMAND with all that it can be asked.
            for name in "cmdstat_command|getkeys", "cmdstat_command":
                asked += r.info("commandstats").get(name, {}).get("calls", 0)
    return moved, asked


def grown(before, after):
    return tuple(later - earlier for earlier, later in zip(before, after))


with redis.RedisCluster(host="127.0.0.1", port=port) as r:
    nodes = r.get_primaries()
    for limited, words in single("plain"):
        assert r.execute_command(*words)[0] == limited, words
    # It asks a node for the keys of each call, and so finds the right one.
    before = counted(nodes)
    for limited, words, _ in several("plain"):
        assert r.execute_command(*words)[0] == limited, words
    moved, asked = grown(before, counted(nodes))
    assert moved == 0 and asked >= 3 * USERS, (moved, asked)
    # Told the node, it does not ask.
    before = counted(nodes)
    for limited, words, key in several("told"):
        assert r.execute_command(*words, target_nodes=r.get_node_from_key(key))[0] == limited, words
    assert grown(before, counted(nodes)) == (0, 0)
    try:
        raise AssertionError(r.execute_command(*CROSS_SLOT))
    except redis.exceptions.RedisClusterException as error:
        assert "same key slot" in str(error), error


async def main():
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as r:
        for limited, words in single("asyncio"):
            assert (await r.execute_command(*words))[0] == limited, words
        before = counted(nodes)
        for limited, words, _ in several("asyncio"):
            assert (await r.execute_command(*words))[0] == limited, words
        moved, asked = grown(before, counted(nodes))
        assert moved == 0 and asked >= 3 * USERS, (moved, asked)
        before = counted(nodes)
        for limited, words, key in several("asyncio told"):
            assert (await r.execute_command(*words, target_nodes=r.get_node_from_key(key)))[0] == limited, words
        assert grown(before, counted(nodes)) == (0, 0)
        try:
            raise AssertionError(await r.execute_command(*CROSS_SLOT))
        except redis.exceptions.RedisClusterException as error:
            assert "same key slot" in str(error), error


asyncio.run(main())
print(f"{USERS} keys and pairs of keys with each cluster client of redis-py")
