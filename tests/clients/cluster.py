"""Finds the node of each key with the cluster clients of redis-py: cluster.py PORT."""

import asyncio
import inspect
import sys

import redis
import redis.asyncio

port = int(sys.argv[1])
USERS = 50


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


async def check(r, nodes, name):
    async def ask(*words, **options):
        answer = r.execute_command(*words, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def ask_for_several(tag, *, is_told):
        """Two limits of one slot."""
        keys = f"{{{tag}}}:rate", f"{{{tag}}}:jobs"
        node = {"target_nodes": r.get_node_from_key(keys[0])} if is_told else {}
        for limited in 0, 0, 1:
            assert (await ask("RL.ALL", 2, *keys, "WINDOW", 2, "1h", "ACQUIRE", 9, 0, **node))[0] == limited, keys

    users = [f"{name}:{user}" for user in range(USERS)]
    for user in users:
        for limited in 0, 0, 1:
            assert (await ask("RL.WINDOW", user, 2, "1h"))[0] == limited, user
    # It asks a node for the keys of each call, and so finds the right one.
    before = counted(nodes)
    for user in users:
        await ask_for_several(user, is_told=False)
    moved, asked = grown(before, counted(nodes))
    assert moved == 0 and asked >= 3 * USERS, (moved, asked)
    # Told the node, it does not ask.
    before = counted(nodes)
    for user in users:
        await ask_for_several(f"{user}:told", is_told=True)
    assert grown(before, counted(nodes)) == (0, 0)
    try:
        raise AssertionError(await ask(*CROSS_SLOT))
    except redis.exceptions.RedisClusterException as error:
        assert "same key slot" in str(error), error


async def main():
    with redis.RedisCluster(host="127.0.0.1", port=port) as plain:
        nodes = plain.get_primaries()
        await check(plain, nodes, "plain")
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as soon:
        await check(soon, nodes, "asyncio")


asyncio.run(main())
print(f"{USERS} keys and pairs of keys with each cluster client of redis-py")
