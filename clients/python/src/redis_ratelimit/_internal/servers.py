"""The servers of a limiter, and the way of a call to one of them: which server, what is sent, where a reply redirects to.
Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from time import monotonic
from typing import Any

from .breaker import Breaker
from .libraries import Copy, Library, Redirect
from .words import Key, Word

#: The greatest number of connections to a server that calls use at the same time, besides those of waiting calls.
PLACES = 50
#: The most redirections of a call: a cluster whose nodes disagree would redirect it forever.
REDIRECTS = 5
#: A server that answered within this many seconds and now hangs up on new connections is taken to have too many.
FULL_SECONDS = 1.0

#: The name of a client's encoding, and how it handles errors.
Encoding = tuple[str, str]


def encode(word: Word, encoding: Encoding) -> bytes:
    """Returns the bytes of a word. Raises ValueError for a text that cannot be encoded, such as half of a surrogate pair."""
    if isinstance(word, str):
        try:
            return word.encode(*encoding)
        except UnicodeEncodeError as error:
            raise ValueError(f"{word!r} cannot be sent in {encoding[0]}: {error.reason}") from None
    return word if isinstance(word, bytes) else b"%d" % word


def pack(words: Sequence[Word], encoding: Encoding) -> bytes:
    """Returns the bytes of a command. The client library accepts more types of values, but takes twice as long.

    This may raise an error, so it must be done before a connection is borrowed for the command.
    """
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        sent = encode(word, encoding)
        parts.append(b"$%d\r\n%b\r\n" % (len(sent), sent))
    return b"".join(parts)


class Attempt:
    """The state of a call while it is under way."""

    __slots__ = ("began", "is_sent", "may_wait", "pool", "seconds", "server")

    def __init__(self, seconds: float | None, may_wait: bool) -> None:
        self.began = monotonic()
        #: The longest that the call takes; None without a limit.
        self.seconds = seconds
        self.may_wait = may_wait
        self.server: Server | None = None
        #: The pool of its connection.
        self.pool: Any = None
        #: True if the server may have received the call.
        self.is_sent = False


class Server:
    """A server, with a pool of connections to it and its breaker."""

    def __init__(self, name: str, copy: Copy, places: Any, **address: Any) -> None:
        self.name = name
        self._copy = copy
        self._address = address
        #: A semaphore of threads or of asyncio. A pool alone would raise an error when it is full, or make each call wait.
        self.places = places
        self.breaker = Breaker(name)
        self.pool: Any = copy.make_pool(**address)
        #: The number of calls under way that may wait (BLOCK). They take no place.
        self._waiting = 0
        self._lock = Lock()

    def count(self, waiting: int) -> None:
        """Counts a call that may wait, when it begins (1) and when it ends (-1)."""
        with self._lock:
            self._waiting += waiting

    def keeps(self, attempt: Attempt) -> bool:
        """Returns whether the connection of a call is kept after it."""
        return attempt.pool is self.pool and not (attempt.may_wait and self._waiting > PLACES)

    def replace_pool(self) -> Any:
        """Begins a new pool, so that later calls make new connections. Returns the old one, whose idle connections the
        caller closes."""
        old, self.pool = self.pool, self._copy.make_pool(**self._address)
        return old


class SingleServer:
    """A single server, or the master of a service that Sentinels watch."""

    def __init__(self, copy: Copy, make_places: Any) -> None:
        settings = copy.settings
        name = f"the master of {copy.service}" if copy.service else settings.get("path")
        name = name or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        self._server = Server(str(name), copy, make_places(min(PLACES, copy.max_connections)))

    def server_of(self, key: Key | None) -> Server:
        """Returns the server that has a key, as far as is known."""
        return self._server

    def known(self) -> list[Server]:
        """Returns all known servers."""
        return [self._server]

    def record_failure(self) -> None:
        """Records that a server did not answer."""


class ClusterServers:
    """The nodes of a cluster. The table of slots is read again after a node replied MOVED or did not answer."""

    # The table of the client library, `nodes_manager`, is read by its own connections, with the client's timeouts and
    # retries: in redis-py 8.1 a node that hangs holds up initialize() for 5 s, in valkey-py 6.2 without an end, and it is
    # asked again by each reading, as no breaker knows of it. A copy of the client with other timeouts can only be created by
    # connecting, which fails while no node answers, and with asyncio each event loop needs its own. Threads that are
    # redirected overwrite each other's MOVED in valkey-py and earlier versions of redis-py. Only to_ask() and read_table()
    # would be saved: pools and breakers for each node, and redirects, are needed in any case, because the clients of the
    # libraries send lost calls again.

    #: The least number of seconds between two readings of the table.
    PAUSE_SECONDS = 0.5

    def __init__(self, library: Library, copy: Copy, make_places: Any, lock: Any, encoding: Encoding) -> None:
        self._library = library
        self._copy = copy
        self._make_places = make_places
        #: A lock of threads or of asyncio, held while the table is read.
        self.lock = lock
        self._encoding = encoding
        self._remap = getattr(copy.nodes, "address_remap", None)
        self._servers: dict[tuple[str, int], Server] = {}
        self._slots: list[Server | None] = []
        self._is_stale = True
        self._read_at = float("-inf")
        self._error: Exception | None = None
        for node in copy.nodes.startup_nodes.values():
            self._server(node.host, int(node.port))

    def must_be_read(self) -> bool:
        """Returns whether the table of slots must be read before the next call."""
        return self._is_stale and monotonic() - self._read_at >= self.PAUSE_SECONDS

    def slot_of(self, key: Key) -> int:
        slot: int = self._library.key_slot(encode(key, self._encoding))
        return slot

    def server_of(self, key: Key | None) -> Server | None:
        return self._slots[self.slot_of(key)] if self._slots and key is not None else None

    def serving(self, key: Key) -> Server:
        """Returns the node that serves a key. Raises an error if there is none."""
        if not self._slots:
            raise self._library.unsent_error(f"the cluster does not answer: {self._error}")
        server = self.server_of(key)
        if server is None:
            raise self._library.connection_error(f"no node of the cluster serves the slot {self.slot_of(key)}")
        return server

    def serving_any(self) -> list[Server]:
        """Returns the nodes that serve slots."""
        return list({server.name: server for server in self._slots if server}.values())

    def to_ask(self, seconds: float) -> Iterator[Server]:
        """Yields the nodes to ask for the table, for about this long. Those that have answered most recently come first."""
        began = monotonic()
        for server in sorted(self.known(), key=lambda each: (each.breaker.has_failed, -each.breaker.answered_at)):
            if monotonic() - began < seconds:
                yield server
        # None has returned it. If the caller was cancelled, another reads it.
        self._read_at = monotonic()

    def read_table(self, table: Any, server: Server) -> None:
        """Reads the reply of a node to CLUSTER SLOTS."""
        slots: list[Server | None] = [None] * 16384
        for first, last, (host, port, *_), *_ in table:
            slots[first : last + 1] = [self._at(_text(host), int(port), server)] * (last - first + 1)
        self._slots, self._is_stale, self._read_at = slots, False, monotonic()

    def record_no_table(self, error: Exception) -> None:
        """Records that a node did not return the table."""
        self._error = error

    def known(self) -> list[Server]:
        return list(self._servers.values())

    def record_failure(self) -> None:
        self._is_stale = True

    def redirected(self, redirect: Redirect, server: Server) -> Server:
        """Returns the node that `server` redirected a call to."""
        target = self._at(redirect.host, redirect.port, server)
        if not redirect.asking:
            self._is_stale = True
            if self._slots:
                self._slots[redirect.slot] = target
        return target

    def _at(self, host: str, port: int, teller: Server) -> Server:
        # An empty host stands for the node that says it, which does not know its own address.
        return self._server(host or teller.name.rpartition(":")[0], port)

    def _server(self, host: str, port: int) -> Server:
        address = self._remap((host, port)) if self._remap else (host, port)
        server = self._servers.get(address)
        if server is None:
            places = self._make_places(min(PLACES, self._copy.max_connections))
            made = Server(f"{address[0]}:{address[1]}", self._copy, places, host=address[0], port=address[1])
            # Another thread may have made one.
            server = self._servers.setdefault(address, made)
        return server


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


ASKING = b"*1\r\n$6\r\nASKING\r\n"
MULTI = b"*1\r\n$5\r\nMULTI\r\n"
EXEC = b"*1\r\n$4\r\nEXEC\r\n"


class Delivery:
    """Commands on their way to a server. Those that a cluster redirects, and only those, are sent again: they were not
    executed."""

    def __init__(self, commands: Sequence[bytes], server: Server, is_atomic: bool) -> None:
        is_transaction = is_atomic and len(commands) > 1
        #: What is sent, and redirected, together: a transaction, or one command.
        self._units = [[MULTI, *commands, EXEC]] if is_transaction else [[command] for command in commands]
        #: The reply to each unit, which may be an error reply. That to a transaction is a list.
        self.replies: list[Any] = [None] * len(self._units)
        #: The units that have no reply yet.
        self.left: Sequence[int] = range(len(self._units))
        self.server = server
        self._is_asking = False
        self._redirects = 0

    def commands(self) -> list[bytes]:
        """Returns what to send to `server` now."""
        # ASKING is for one command, or one transaction.
        first = [ASKING] if self._is_asking else []
        return [command for at in self.left for command in (*first, *self._units[at])]

    def receive(self, answers: Iterator[Any], servers: SingleServer | ClusterServers, library: Library) -> None:
        """Reads the replies to what was sent. Sets `left` and `server` for what was redirected."""
        left, target = [], self.server
        for at in self.left:
            replies = [next(answers) for _ in range(len(self._units[at]) + self._is_asking)]
            # If a command was refused before EXEC, its error says why nothing was executed. The error of EXEC does not.
            reply = self.replies[at] = next((each for each in replies if isinstance(each, Exception)), replies[-1])
            if not isinstance(servers, ClusterServers) or self._redirects >= REDIRECTS:
                continue
            if redirect := library.redirect(reply):
                left.append(at)
                target, is_asking = servers.redirected(redirect, self.server), redirect.asking
        if left:
            self._redirects += 1
            self._is_asking = is_asking
        self.left, self.server = left, target
