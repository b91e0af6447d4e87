"""Calls login() of examples/login.py 400 times at once with a wrong password, and prints each answer: flood.py FOLDER."""

import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, sys.argv[1])
import login  # noqa: E402

with ThreadPoolExecutor(400) as threads:
    for answer in threads.map(lambda _: login.login("alice", "guess", "127.0.0.1"), range(400)):
        print(answer)
