"""Repeats recorded calls of a server on the engine in the process, and compares the replies: python -m tests.replay FILE

Each line of the file is a time in Unix microseconds, the words of a call and the server's reply.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from redis_ratelimit import MemoryLimiter


def plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    return {"error": reply.text} if hasattr(reply, "text") else reply


def main() -> None:
    now = [0.0]
    call = MemoryLimiter(clock=lambda: now[0])._memory.call
    lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
    differences = 0
    for number, line in enumerate(lines, 1):
        now_us, words, expected = json.loads(line)
        found = plain(call(tuple(words), now_us))
        if found != expected:
            differences += 1
            if differences <= 10:
                print(f"call {number} at {now_us}: {' '.join(words)}\n  server  {expected}\n  process {found}")
    print(f"Python: {len(lines)} calls, {differences} differences")
    sys.exit(differences > 0)


main()
