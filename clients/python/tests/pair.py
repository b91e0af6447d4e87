"""A master and its replica behind one address, which moves when the replica takes over.

A test can interrupt replication and kill the master. The append-only files of both show what was lost.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .fixtures import read_value
from .servers import Proxy, Server, until

#: Commands that a server writes into its file on its own.
OWN = "SELECT", "PING"
#: How many of the last commands of the replica are searched for in the file of the master.
KNOWN_BY = 20


class Way:
    """A proxy in a separate process, so that a process that forks has no threads."""

    def __init__(self, port: int) -> None:
        self._control, there = socket.socketpair()
        self._process = os.fork()
        if self._process == 0:
            outcome = 1
            try:
                self._control.close()
                _serve(Proxy(port), there)
                outcome = 0
            finally:
                os._exit(outcome)
        there.close()
        self.port = int(self._control.recv(64))

    def _tell(self, word: str) -> None:
        self._control.sendall(word.encode())
        assert self._control.recv(64)

    def lead_to(self, port: int) -> None:
        """Closes the connections, and forwards new ones to another port."""
        self._tell(f"to {port}")

    def drop(self) -> None:
        """Drops all data from now on."""
        self._tell("drop")

    def close(self) -> None:
        # Closing this end would not stop it, because processes that were forked since then have it open too.
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._control.close()


def _serve(proxy: Proxy, control: socket.socket) -> None:
    control.sendall(str(proxy.port).encode())
    while words := control.recv(64).decode().split():
        if words[0] == "to":
            proxy.lead_to(int(words[1]))
        else:
            proxy.drops = True
        control.sendall(b"done")


class Loss(NamedTuple):
    """What a master executed and its replica never received."""

    commands: int
    #: The quantity that these commands reserved. The replica grants it again.
    units: int


class Pair:
    def __init__(self) -> None:
        # The files are never rewritten, and have only commands.
        files = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"]
        files += ["--aof-use-rdb-preamble", "no"]
        self.master = Server(*files)
        self._link = Way(self.master.port)
        self.replica = Server(*files, "--replicaof", "127.0.0.1", str(self._link.port))
        self._wait_for_the_copy()
        self._address = Way(self.master.port)
        self.port = self._address.port

    def _wait_for_the_copy(self) -> None:
        until(lambda: "master_link_status:up" in self.replica.ask("INFO", "replication"), "a replica")
        until(lambda: "aof_rewrite_in_progress:0" in self.replica.ask("INFO", "persistence"), "its file")

    def fail_over(self) -> None:
        """Swaps the roles of the two. Nothing is lost."""
        answer = self.master.ask("FAILOVER", "TO", "127.0.0.1", self.replica.port, "TIMEOUT", 20_000)
        assert answer == "OK", answer
        until(lambda: "role:master" in self.replica.ask("INFO", "replication"), "a failover")
        self.master, self.replica = self.replica, self.master
        self._address.lead_to(self.master.port)

    def lose_the_master(self, lag: Callable[[], None]) -> Loss:
        """Kills the master. The replica takes over without what the master executed during the lag."""
        self._link.drop()
        lag()
        self.master.kill()
        assert self.replica.ask("REPLICAOF", "NO", "ONE") == "OK"
        lost = loss(Path(self.master.folder), Path(self.replica.folder))
        self._address.lead_to(self.replica.port)
        return lost

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *error: object) -> None:
        for way in self._address, self._link:
            way.close()
        for server in self.master, self.replica:
            server.__exit__()


def commands(folder: Path) -> list[list[str]]:
    """Returns the commands in the file of a server since its last rewrite."""
    parts = sorted(folder.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))
    found = []
    for path in parts or [folder / "appendonly.aof"]:
        with open(path, "rb") as file:
            while file.tell() < path.stat().st_size:
                found.append(read_value(file))
    return [words for words in found if words[0].upper() not in OWN]


def loss(master: Path, replica: Path) -> Loss:
    """Returns what the file of a master has after the last command that its replica has."""
    there, here = commands(master), commands(replica)
    # As the new master, it may have deleted keys that expired.
    while here and here[-1][0].upper() in ("DEL", "UNLINK"):
        here.pop()
    last = here[-KNOWN_BY:]
    ends = [at for at in range(len(there), 0, -1) if there[max(0, at - len(last)) : at] == last]
    if not last:
        # On a busy machine nothing may have arrived yet. Then everything is lost.
        ends = [0]
    assert ends, f"the master never wrote {last}, but {there[-KNOWN_BY:]}"
    end = ends[0]
    lost = there[end:]
    known = {name for words in there[:end] for name, _ in _reserved(words)}
    made = {name: quantity for words in lost for name, quantity in _reserved(words) if name not in known}
    return Loss(len(lost), sum(made.values()))


def _reserved(words: list[str]) -> Iterator[tuple[str, int]]:
    """Yields the id and the quantity of each reservation that a command writes as #LENGTH:ID:QUANTITY:... RL.RENEW writes
    an id again."""
    if words[0].upper() == "ZADD":
        for member in words[3::2]:
            if member.startswith("#"):
                _, name, quantity = member.split(":")[:3]
                yield name, int(quantity)
