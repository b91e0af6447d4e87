"""Servers, Sentinels, clusters and a proxy for tests, that can be killed, stopped and started again.

REDIS_SERVER is the program of the server, RATELIMIT_SO the module.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from redis_ratelimit import Busy

from .fixtures import LIBRARIES, done, read_value

PROGRAM = os.environ.get("REDIS_SERVER", "redis-server")
MODULE = os.environ.get("RATELIMIT_SO", str(Path(__file__).parents[3] / "target/release/libredis_ratelimit.so"))
#: The seconds that a test waits for something that takes milliseconds on an idle machine.
PATIENCE = 60
#: The errors of a server that does not answer in time. One that changes its role hangs up.
AWAY = (
    OSError,
    Busy,
    *(
        getattr(import_module(f"{name}.exceptions"), error)
        for name in LIBRARIES
        for error in ("ConnectionError", "TimeoutError")
    ),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def knows_tls() -> bool:
    """Returns whether the server was built with TLS."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [PROGRAM, "--port", "0", "--tls-port", "0", "--tls-auth-clients", "wrong", "--dir", folder]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE)
    # Without TLS the server does not know the setting; with TLS it refuses the value.
    return "must be one of" in said.stdout + said.stderr


def until(is_so: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if is_so():
                return
        except AWAY:
            pass
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


async def until_soon(is_so: Callable[[], Any], what: str) -> None:
    """Does the same as until(), while the event loop runs."""
    end = time.monotonic() + PATIENCE
    while not await done(is_so()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


class Wire:
    """A connection to a server without any client library."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._file = self._socket.makefile("rb")

    def ask(self, *words: Any) -> Any:
        self.send(*words)
        return self.read()

    def send(self, *words: Any) -> None:
        texts = [str(word).encode() for word in words]
        head = b"*%d\r\n" % len(texts)
        self._socket.sendall(head + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts))

    def read(self) -> Any:
        return read_value(self._file)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


#: The user of restrict() that may do everything.
ADMIN: dict[str, Any] = {"username": "admin", "password": "admin"}


def restrict(adapter: str, ports: list[int], *more: str, also: bool = False) -> Callable[[], None]:
    """Restricts the default user of servers to the rights that docs/commands.md lists for an adapter, and to more. `also` is
    the last column. ADMIN may do everything.

    Returns a function that lifts the restriction. It fails if the servers have refused anything.
    """
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| \[{adapter}\].*?\| (.*)$", page, re.MULTILINE)
    patterns, commands, options = (re.findall("`(.*?)`", cell) for cell in row.split("|")[:3])
    # What client libraries send by themselves, also in a cluster.
    (libraries,) = re.findall(r"^ACL SETUSER app .* \+@ratelimit (.* \+cluster.*)$", page, re.MULTILINE)
    names = [f"+{name.lower()}" for name in commands]
    rights = " ".join([*more, *patterns, *names, *(options if also else ()), libraries]).split()

    def lift() -> None:
        for port in ports:
            with closing(Wire(port)) as wire:
                wire.ask("AUTH", "admin", "admin")
                wire.ask("ACL", "SETUSER", "default", "~*", "&*", "+@all")
                log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in wire.ask("ACL", "LOG")]
                refused = {entry["object"] for entry in log}
                assert all(object.startswith("client") for object in refused), refused

    for port in ports:
        with closing(Wire(port)) as wire:
            wire.ask("ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all")
            wire.ask("AUTH", "admin", "admin")
            restricted = "ACL", "SETUSER", "default", "resetkeys", "-@all"
            if isinstance(wire.ask(*restricted, *rights), Exception):
                # Redis 7.0 does not know CLIENT SETINFO.
                reply = wire.ask(*restricted, *(right for right in rights if right != "+client|setinfo"))
                assert reply == "OK", reply
            wire.ask("ACL", "LOG", "RESET")
    return lift


class Server:
    """A server with the module. It is killed when the block ends."""

    def __init__(self, *arguments: str, module: bool = True) -> None:
        self.folder = tempfile.mkdtemp(prefix="ratelimit-")
        self._arguments = [*(["--loadmodule", MODULE] if module else []), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(5):
            self.port = free_port()
            self.start()
            if self._runs():
                return
            # Another program has taken the port meanwhile, or that of the cluster bus, which is 10,000 higher.
        raise AssertionError(f"no server starts: {(Path(self.folder) / 'log').read_text()}")

    def arguments(self) -> list[str]:
        address = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", ""]
        return [*address, *self._arguments]

    def start(self, *more: str, wait: bool = True) -> None:
        with open(Path(self.folder) / "log", "ab") as log:
            self._process = subprocess.Popen([PROGRAM, *self.arguments(), *more], stdout=log, stderr=log)
        is_up = self._answers if wait else self._listens
        until(lambda: is_up() or not self._runs(), "a server")

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _listens(self) -> bool:
        try:
            Wire(self.port).close()
        except OSError:
            return False
        return True

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING") == "PONG")
        except OSError:
            return False

    def ask(self, *words: Any) -> Any:
        wire = Wire(self.port)
        try:
            return wire.ask(*words)
        finally:
            wire.close()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: Any) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Clock:
    """The wall clock of the servers and programs that are started in its block. It is behind, and can be moved forward.

    RATELIMIT_TEST_CLOCK is its file, which tests/support/src/clock.c describes.
    """

    def __init__(self, behind_seconds: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="clock-")
        library, self.file = f"{self._folder.name}/clock.so", Path(self._folder.name) / "clock"
        source = Path(__file__).parents[3] / "tests" / "support" / "src" / "clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        self.file.write_bytes(bytes(16))
        self._behind_us = behind_seconds * 1_000_000
        self.move_forward(0)
        self._patch = mock.patch.dict("os.environ", {"LD_PRELOAD": library, "RATELIMIT_TEST_CLOCK": str(self.file)})

    def move_forward(self, seconds: int) -> None:
        self._behind_us -= seconds * 1_000_000
        with open(self.file, "r+b") as file:
            file.write((-self._behind_us).to_bytes(8, sys.byteorder, signed=True))

    def __enter__(self) -> Clock:
        self._patch.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.stop()
        self._folder.cleanup()


class Sentinel(Server):
    """A Sentinel of a master with the name "limits"."""

    def __init__(self, master: Server, quorum: int = 1) -> None:
        self._master = master
        self._quorum = quorum
        super().__init__(module=False)

    def arguments(self) -> list[str]:
        config = Path(self.folder) / "sentinel.conf"
        if not config.exists():
            config.write_text(
                f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
                f"sentinel monitor limits 127.0.0.1 {self._master.port} {self._quorum}\n"
                "sentinel down-after-milliseconds limits 1000\nsentinel failover-timeout limits 5000\n"
            )
        return [str(config), "--sentinel"]


class Cluster:
    """Three masters, and a replica of the first."""

    def __init__(self) -> None:
        options = "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"
        self.nodes = [Server(*options) for _ in range(4)]
        ids = [node.ask("CLUSTER", "MYID") for node in self.nodes]
        bounds = [0, 5461, 10923, 16384]
        for at in range(3):
            self.nodes[at].ask("CLUSTER", "ADDSLOTS", *range(bounds[at], bounds[at + 1]))
            self.nodes[at].ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        until(
            lambda: all(node.ask("CLUSTER", "INFO").count("cluster_known_nodes:4") for node in self.nodes), "a cluster"
        )
        until(lambda: not isinstance(self.nodes[3].ask("CLUSTER", "REPLICATE", ids[0]), Exception), "a replica")
        until(lambda: "cluster_state:ok" in self.nodes[3].ask("CLUSTER", "INFO"), "an agreement")
        for node in self.nodes:
            until(lambda: "cluster_state:ok" in node.ask("CLUSTER", "INFO"), "an agreement")
            until(lambda: sum(entry[1] - entry[0] + 1 for entry in node.ask("CLUSTER", "SLOTS")) == 16384, "all slots")
        until(lambda: "master_link_status:up" in self.nodes[3].ask("INFO", "replication"), "a replica")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: Any) -> None:
        for node in self.nodes:
            node.__exit__()


class Proxy:
    """A proxy of a server that can be slow, or drop everything silently."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._target = port
        self.delay = delay
        self.drops = False
        #: The number of bytes of each reply that are passed on. The rest is dropped.
        self.cut: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for each in near, far:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets |= {near, far}
            threading.Thread(target=self._pass, args=[near, far, False], daemon=True).start()
            threading.Thread(target=self._pass, args=[far, near, True], daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, back: bool) -> None:
        try:
            while data := here.recv(65536):
                if back and self.delay:
                    time.sleep(self.delay)
                if self.drops:
                    continue
                if back and self.cut is not None:
                    data = data[: self.cut]
                there.sendall(data)
        except OSError:
            pass
        if not self.drops:
            self._end(here, there)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        sockets = [*self._sockets]
        self._sockets.difference_update(sockets)
        self._end(*sockets)
        for each in sockets:
            each.close()

    def lead_to(self, port: int, *, hang_up: bool = True) -> None:
        """Forwards new connections to another port. Closes the open ones, unless `hang_up` is false."""
        self._target = port
        if hang_up:
            self._close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: Any) -> None:
        self._listener.close()
        self._close()
