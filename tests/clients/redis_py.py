"""Runs every case and every way to wait with redis-py: redis_py.py PORT_WITH_HELD_CLOCK PORT."""

import json
import pathlib
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CASES = json.loads(pathlib.Path(__file__).with_name("cases.json").read_text("utf-8"))
SCRIPT = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))"


def as_eval(name, key, *rest):
    return "EVAL", SCRIPT, 1, key, name, *rest


def check(mode, replies):
    assert len(replies) == len(CASES), mode
    for (call, expected), reply in zip(CASES, replies):
        if isinstance(expected, dict):
            right = isinstance(reply, redis.ResponseError) and expected["error"] in str(reply)
        else:
            right = reply == expected
        assert right, f"{mode}: {call} answered {reply!r}, not {expected!r}"


def one_by_one(r, wrap):
    for call, _ in CASES:
        try:
            yield r.execute_command(*wrap(*call.split()))
        except redis.ResponseError as error:
            yield error


def at_once(r, transaction):
    pipe = r.pipeline(transaction=transaction)
    for call, _ in CASES:
        pipe.execute_command(*call.split())
    return pipe.execute(raise_on_error=False)


def every_case(port, protocol):
    r = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    modes = {
        "plain": lambda: list(one_by_one(r, lambda *words: words)),
        "pipelined": lambda: at_once(r, transaction=False),
        "in a transaction": lambda: at_once(r, transaction=True),
        "from a script": lambda: list(one_by_one(r, as_eval)),
    }
    for mode, run in modes.items():
        r.flushall()
        check(f"RESP{protocol} {mode}", run())


def waiting(port, protocol):
    r = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    r.flushall()

    def timed(*words, client=r):
        begin = time.monotonic()
        return client.execute_command(*words), time.monotonic() - begin

    # Granted when its turn comes.
    r.execute_command("RL.THROTTLE", "mail", 0, 10, 1)
    reply, took = timed("RL.THROTTLE", "mail", 0, 10, 1, "BLOCK", 4000)
    assert reply[0] == 0 and 0.08 < took < 3, (reply, took)

    # Denied when its time is up.
    assert r.execute_command("RL.ACQUIRE", "job", 1, 0, "ID", "first")[5] == "first"
    reply, took = timed("RL.ACQUIRE", "job", 1, 0, "BLOCK", 200)
    assert reply[0] == 2 and reply[5] is None and 0.19 < took < 3, (reply, took)

    # Granted as soon as somebody gives back.
    threading.Timer(0.2, r.execute_command, ("RL.RELEASE", "job", "first")).start()
    reply, took = timed("RL.ACQUIRE", "job", 1, 0, "ID", "second", "BLOCK", 4000)
    assert reply[5] == "second" and 0.15 < took < 3, (reply, took)

    # The client is the first to lose patience: it hangs up, and takes nothing when its turn would have come.
    once = Retry(NoBackoff(), 0)
    hasty = redis.Redis(port=port, protocol=protocol, socket_timeout=0.2, retry=once)
    try:
        reply = hasty.execute_command("RL.ACQUIRE", "job", 1, 0, "BLOCK", 4000)
        raise AssertionError(f"{reply} came before the client's own timeout")
    except redis.TimeoutError:
        pass
    while r.info("ratelimit")["ratelimit_waiting"] != 0:
        time.sleep(0.01)
    assert r.execute_command("RL.RELEASE", "job", "second") == 1
    assert r.execute_command("RL.HELD", "job") == []


if __name__ == "__main__":
    held, port = map(int, sys.argv[1:])
    for protocol in 2, 3:
        every_case(held, protocol)
        waiting(port, protocol)
    print(f"{len(CASES)} cases with redis-py {redis.__version__}")
