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

    def until_waiting(count):
        while r.info("ratelimit")["ratelimit_waiting"] != count:
            time.sleep(0.01)

    # Granted when its turn comes.
    begin = time.monotonic()
    r.execute_command("RL.THROTTLE", "mail", 0, 10, 1)
    reply = r.execute_command("RL.THROTTLE", "mail", 0, 10, 1, "BLOCK", 60000)
    took = time.monotonic() - begin
    assert reply[0] == 0 and took > 0.099, (reply, took)

    # Denied when its time is up.
    assert r.execute_command("RL.ACQUIRE", "job", 1, 0, "ID", "first")[5] == "first"
    begin = time.monotonic()
    reply = r.execute_command("RL.ACQUIRE", "job", 1, 0, "BLOCK", 200)
    took = time.monotonic() - begin
    assert reply[0] == 2 and reply[5] is None and took > 0.199, (reply, took)

    # Granted as soon as somebody gives back.
    def give_back():
        until_waiting(1)
        r.execute_command("RL.RELEASE", "job", "first")

    threading.Thread(target=give_back).start()
    second = ("RL.ACQUIRE", "job", 1, 0, "ID", "second", "LEASE", 60000)
    assert r.execute_command(*second, "BLOCK", 60000)[5] == "second"

    # The client is the first to lose patience: it hangs up, and takes nothing when its turn would have come.
    once = Retry(NoBackoff(), 0)
    hasty = redis.Redis(port=port, protocol=protocol, socket_timeout=0.2, retry=once)
    try:
        reply = hasty.execute_command("RL.ACQUIRE", "job", 1, 0, "BLOCK", 60000)
        raise AssertionError(f"{reply} came before the client's own timeout")
    except redis.TimeoutError:
        pass
    until_waiting(0)
    assert r.execute_command("RL.RELEASE", "job", "second") == 1
    assert r.execute_command("RL.HELD", "job") == []


if __name__ == "__main__":
    held, port = map(int, sys.argv[1:])
    for protocol in 2, 3:
        every_case(held, protocol)
        waiting(port, protocol)
    print(f"{len(CASES)} cases with redis-py {redis.__version__}")
