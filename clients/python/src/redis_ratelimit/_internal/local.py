"""The base class of the local limits of both limiters."""

from __future__ import annotations

import os
from typing import Any, cast

from . import calls
from .core import Core, Failure, as_unreachable
from .io import await_if_needed
from .leases import Leases, Round
from .parameters import Duration, Key, WindowLike, whole
from .replies import Reply


class LocalBase:
    """A limit that is decided in the process, from what the process has reserved."""

    #: The number of times that a take asks the server before it gives up because others spend what arrives.
    ROUNDS = 20

    def __init__(self, core: Core[Any], key: Key, window: WindowLike, lease: Duration, leave: int) -> None:
        self._core = core
        self._leases = Leases(key, window, lease, leave, core.clock)
        self._leases.wake = self._wake
        self._leases.code = core.library.code
        self._leases.late_error = core.library.timeout_error
        self._reset()

    def _wake(self) -> None:
        """Starts or wakes the thread or task that sends commands. Called with the lock held."""
        raise NotImplementedError

    def _reset(self) -> None:
        """Forgets the thread or the task, which belongs to another process."""
        raise NotImplementedError

    def _start_over(self) -> None:
        """Drops what a forked child inherited, because it belongs to the parent."""
        self._leases.start_over()
        self._reset()

    def _decide(self, quantity: int) -> Reply | None:
        """Returns a decision in the process; None if the server must be asked."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        # Nothing is called for a usual quantity.
        if (type(quantity) is not int or quantity < 1) and whole("quantity", quantity) < 1:
            raise ValueError(f"quantity must be at least 1, not {quantity}")
        return leases.take(quantity)

    def try_take(self, quantity: int = 1) -> Reply | None:
        """Decides as take() does, but at once and without waiting, also with asyncio. Returns None if the process holds too
        little. Then it begins to ask the server, so that a later call can decide."""
        reply = self._decide(quantity)
        if reply is None:
            with self._leases.lock:
                # It counts as demand when it is decided: until then the caller may try any number of times.
                self._leases.want(quantity, is_counted=True)
        return reply

    async def _exchange(self, round_: Round) -> list[Any] | Failure:
        try:
            return await self._core.send_all(self._leases.key, round_.commands)
        except Exception as error:
            return Failure(error, True)

    def _report(self, round_: Round, replies: list[Any] | Failure) -> None:
        """Reports the outcome of a round. Called with the lock held."""
        if isinstance(replies, Failure):
            self._leases.fail(round_, replies.error, replies.is_sent)
        else:
            self._leases.receive(round_, replies)

    async def _answer_instead(self, error: Exception, quantity: int) -> Reply:
        """Returns the decision of `unreachable` about a take that the server did not answer, or raises the error."""
        core, leases = self._core, self._leases
        if core.unreachable == "raise" or not core.is_away(error):
            raise error
        if isinstance(core.unreachable, str):
            return calls.unreached(core.unreachable == "allow", quantity=quantity)
        options: dict[str, Any] = {"leave": leases.leave} if leases.leave else {}
        answer = core.unreachable.window(leases.key, leases.window, quantity, **options)
        return cast(Reply, as_unreachable(await await_if_needed(answer)))

    def _raise_unsettled(self) -> None:
        """Raises the error because of which close() could not settle all that was held."""
        leases = self._leases
        if leases.refused is not None:
            raise leases.refused
        error = leases.error
        if leases.has_given_up and error is not None and not self._core.is_forgiven(error):
            raise error
