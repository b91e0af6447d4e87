"""Finds the server for a call: a single server, the master of a Sentinel service, or the node that has the key's slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .breaker import Breaker
from .calls import Call
from .io import Address, encode
from .libraries import Library
from .parameters import Key
from .pool import PLACES, Pool

if TYPE_CHECKING:
    from .connecting import Attempt, Connector

ConnectionFactory = Callable[..., Any]


class Server:
    """A server with its connections and its breaker."""

    def __init__(self, name: str, make: ConnectionFactory, places: int) -> None:
        self.name = name
        #: Makes a connection, without connecting it.
        self.make = make
        self.pool = Pool(places)
        self.breaker = Breaker()
        #: The address of the last connection; None if connections have a fixed address.
        self.address: Address | None = None
        #: The last time when the server said that it accepts no more connections.
        self.full_at = float("-inf")
        #: Increases when the server is left because it became a replica. Connections of earlier generations are closed.
        self.generation = 0

    def __str__(self) -> str:
        return self.name if self.address is None else f"{self.name} at {self.address[0]}:{self.address[1]}"


class Route(NamedTuple):
    """The server to which a call is sent."""

    server: Server
    #: True if ASKING must be sent first, because the slot of the call's key is moving to this server.
    asking: bool = False


class Servers(ABC):
    """The servers of a limiter. Subclasses choose the server for a call."""

    @abstractmethod
    def known_server(self, call: Call[Any]) -> Server | None:
        """Returns the server for a call if that is known without asking a server; otherwise None."""

    @abstractmethod
    def server_of(self, key: Key) -> Server | None:
        """Returns the server that had a key when that was last asked; None if it was never asked."""

    async def find(self, call: Call[Any], attempt: Attempt) -> Server:
        """Finds the server for a call by asking a server. Called if known_server() returned None."""
        raise NotImplementedError

    async def locate(self, until: float) -> Address | None:
        """Returns the address for a new connection; None if connections have a fixed address."""
        return None

    def route_after(self, error: Exception, server: Server) -> Route | None:
        """Returns the route of a call that `server` redirected; None if the error is not a redirection."""
        return None

    def record_failure(self) -> None:  # noqa: B027
        """Records that a server did not answer."""

    @abstractmethod
    def known_servers(self) -> list[Server]:
        """Returns all known servers."""


class SingleServer(Servers):
    """A single server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def known_server(self, call: Call[Any]) -> Server:
        return self._server

    def server_of(self, key: Key) -> Server:
        return self._server

    def known_servers(self) -> list[Server]:
        return [self._server]


class SentinelServers(SingleServer):
    """The master of a Sentinel service. Its address is asked for each new connection, as it may have changed. If no Sentinel
    answers, the last known address is used."""

    #: If no Sentinel answers, none is asked again for this many seconds.
    PAUSE_SECONDS = 0.5

    def __init__(self, core: Connector[Any], server: Server, service: str, sentinels: list[ConnectionFactory]) -> None:
        super().__init__(server)
        self._core = core
        self._service = service
        self._sentinels = sentinels
        #: Until this time no Sentinel is asked, because none answered.
        self._silent_until = float("-inf")

    async def locate(self, until: float) -> Address:
        core = self._core
        words = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service
        last_address = self._server.address
        if last_address is not None:
            if monotonic() < self._silent_until:
                return last_address
            # This leaves time to connect to the last known address.
            until = _half(until)
        error: Exception | None = None
        for make in tuple(self._sentinels):
            try:
                reply = await core.ask_once(make, words, _half(until))
            except Exception as lost:
                error = lost
                continue
            if reply:
                # Next time, the Sentinel that answered is asked first.
                self._sentinels = [make, *(other for other in self._sentinels if other is not make)]
                return _text(reply[0]), int(reply[1])
        if last_address is not None:
            # If the server there is no longer a master, it will say so.
            self._silent_until = monotonic() + self.PAUSE_SECONDS
            return last_address
        raise core.library.connection_error(f"no Sentinel knows the master of {self._service}") from error

    def route_after(self, error: Exception, server: Server) -> Route | None:
        if not self._core.library.is_read_only(error):
            return None
        # The master has become a replica. It has not executed the call.
        server.address = None
        return Route(server)


class ClusterServers(Servers):
    """The nodes of a cluster. The table of slots is read again when a node replies MOVED or does not answer."""

    #: The least number of seconds between two readings of the table.
    PAUSE_SECONDS = 0.5

    def __init__(
        self,
        core: Connector[Any],
        make: ConnectionFactory,
        places: int,
        *,
        startup: Iterable[Address],
        remap: Any,
    ) -> None:
        self._core = core
        self._make = make
        self._places = places
        self._startup = list(startup)
        self._remap = remap
        self._slot_of: Callable[[bytes], int] = import_module(f"{core.library.name}.crc").key_slot
        self._servers: dict[Address, Server] = {}
        self._slots: list[Server | None] = []
        self._stale = True
        self._read_at = float("-inf")
        self._reading = False
        self._waiting: list[Any] = []
        self._lock = Lock()
        #: The breaker of the whole cluster, until its slots are known.
        self._breaker = Breaker()

    def known_server(self, call: Call[Any]) -> Server | None:
        return None if self._stale or call.key is None else self.server_of(call.key)

    def server_of(self, key: Key) -> Server | None:
        return self._slots[self._slot_of_key(key)] if self._slots else None

    def _slot_of_key(self, key: Key) -> int:
        return self._slot_of(encode(key, self._core.encoding))

    async def find(self, call: Call[Any], attempt: Attempt) -> Server:
        if self._stale:
            await self._refresh(attempt)
        assert call.key is not None
        slot = self._slot_of_key(call.key)
        server = self._slots[slot]
        if server is None:
            raise self._core.library.connection_error(f"no node of the cluster serves the slot {slot}")
        return server

    def is_in_one_slot(self, call: Call[Any]) -> bool:
        """Returns whether the keys of all commands of a call have the same slot."""
        return len({self._slot_of_key(cast(Key, words[1])) for words in (call.words, *call.further_commands)}) == 1

    async def serving_nodes(self, attempt: Attempt) -> list[Server]:
        """Returns the nodes that serve slots."""
        if self._stale:
            await self._refresh(attempt)
        return list({server.name: server for server in self._slots if server}.values())

    def route_after(self, error: Exception, server: Server) -> Route | None:
        redirect = self._core.library.redirect(error)
        if redirect is None:
            return None
        target = self._server(redirect.host or self._host_of(server), redirect.port)
        if not redirect.asking:
            with self._lock:
                if self._slots:
                    self._slots[redirect.slot] = target
            self._stale = True
        return Route(target, redirect.asking)

    def record_failure(self) -> None:
        self._stale = True

    def known_servers(self) -> list[Server]:
        return list(self._servers.values())

    def _server(self, host: str, port: int) -> Server:
        address = host, port
        if self._remap is not None:
            address = self._remap(address)
        with self._lock:
            server = self._servers.get(address)
            if server is None:

                def make() -> Any:
                    return self._make(host=address[0], port=address[1])

                server = self._servers[address] = Server(f"{address[0]}:{address[1]}", make, self._places)
            return server

    def _host_of(self, server: Server) -> str:
        return server.name.rpartition(":")[0]

    async def _refresh(self, attempt: Attempt) -> None:
        """Reads the table of slots, unless another call is doing so. If there is no table yet, waits for that call."""
        core = self._core
        while True:
            with self._lock:
                if self._slots and (self._reading or monotonic() - self._read_at < self.PAUSE_SECONDS):
                    return
                if not self._reading:
                    if self._breaker.is_open and not self._breaker.may_probe(monotonic()):
                        raise core.unavailable_error("the cluster", self._breaker)
                    self._reading = True
                    break
                signal = core.io.signal()
                self._waiting.append(signal)
            await core.io.wait(signal, attempt.until)
            # If the call that was reading has been cancelled, this one reads.
            if not self._slots and self._breaker.has_failed:
                raise core.unavailable_error("the cluster", self._breaker)
        began = monotonic()
        try:
            await self._read(attempt.until)
            self._breaker.record_reply(monotonic())
        except Exception as error:
            self._breaker.record_failure(began, monotonic(), error)
            if not self._slots:
                raise
        finally:
            with self._lock:
                self._reading = False
                self._read_at = monotonic()
                waiting, self._waiting = self._waiting, []
            self._breaker.end_probe(monotonic())
            for signal in waiting:
                signal.wake()

    async def _read(self, until: float) -> None:
        core = self._core
        error: Exception | None = None
        # The nodes that have answered most recently are asked first.
        nodes = sorted(
            self.known_servers(), key=lambda server: (server.breaker.has_failed, -server.breaker.answered_at)
        )
        for server in [*nodes, *(self._server(*address) for address in self._startup)]:
            try:
                table = await core.ask_once(server.make, ("CLUSTER", "SLOTS"), _half(until))
            except Exception as lost:
                error = lost
                continue
            slots: list[Server | None] = [None] * 16384
            for first, last, (host, port, *_), *_ in table:
                # An empty host stands for the node that was asked, which does not know its own address.
                name = _text(host) if host else self._host_of(server)
                slots[first : last + 1] = [self._server(name, int(port))] * (last - first + 1)
            self._slots, self._stale = slots, False
            self._forget_others()
            return
        raise error or core.library.connection_error("the cluster has no nodes")

    def _forget_others(self) -> None:
        """Forgets the nodes without slots. A call that is under way on one of them closes its connection at its end."""
        with self._lock:
            serving = set(self._slots)
            others = [server for server in self._servers.values() if server not in serving]
            self._servers = {address: server for address, server in self._servers.items() if server in serving}
        for server in others:
            server.generation += 1
            for connection in server.pool.clear():
                self._core.io.abandon(connection)


def _half(until: float) -> float:
    """Returns a deadline for one of several tries, which leaves half of the time for the others."""
    now = monotonic()
    return now + (until - now) / 2


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def find_pool(library: Library, client: Any) -> Any:
    """Returns the object that has the class, the settings and the greatest number of a client's connections to a server: its
    pool, the pool of a cluster's node, or in asyncio the node itself."""
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        return pool
    node = next(iter(client.nodes_manager.startup_nodes.values()))
    return node if library.asynchronous else getattr(client, f"get_{library.name}_connection")(node).connection_pool


def make_servers(core: Connector[Any], client: Any) -> Servers:
    """Returns the servers of a client, from the settings of its connections."""
    pool = find_pool(core.library, client)
    settings = pool.connection_kwargs
    make = core.connection_factory(pool.connection_class, settings)
    places = min(PLACES, int(pool.max_connections))
    if hasattr(client, "nodes_manager"):
        startup = [(node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()]
        remap = getattr(client.nodes_manager, "address_remap", None)
        return ClusterServers(core, make, places, startup=startup, remap=remap)
    sentinel = getattr(pool, "sentinel_manager", None)
    if sentinel is None:
        name = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        return SingleServer(Server(str(name), make, places))
    if not pool.is_master:
        raise ValueError("a limiter writes, so it needs the master: use Sentinel.master_for")
    pools = [each.connection_pool for each in sentinel.sentinels]
    sentinels = [core.connection_factory(each.connection_class, each.connection_kwargs) for each in pools]
    return SentinelServers(
        core, Server(f"the master of {pool.service_name}", make, places), pool.service_name, sentinels
    )
