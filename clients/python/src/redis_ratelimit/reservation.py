"""What both reservations share: everything but the awaiting."""

from __future__ import annotations

from typing import Any, Literal

from . import calls
from .calls import Call, Key
from .core import Core
from .parameters import Duration, WindowLike, is_semaphore
from .replies import Denied, Id, Lapsed, Reply

Settle = Literal["apply", "release"]


class Settling:
    """A reservation while its work is done."""

    #: The answer to RL.ACQUIRE, from when the context is entered.
    reply: Reply

    def __init__(
        self, core: Core[Any], key: Key, window: WindowLike, settle: Settle | None, kwargs: dict[str, Any]
    ) -> None:
        if settle not in (None, "apply", "release"):
            raise ValueError(f"settle must be 'apply' or 'release', not {settle!r}")
        self._core = core
        self._key = key
        #: How reserve() is called, for a fallback.
        self._args = key, window
        self._kwargs = kwargs
        self._call = calls.reserve(key, window, **kwargs)
        self._settle = settle or ("release" if is_semaphore(window) else "apply")
        #: Only the server knows what a policy is.
        self._is_unsure = settle is None and isinstance(window, str)
        self._settled = False

    @property
    def id(self) -> Id | None:
        """None if nothing is reserved: of quantity 0, by a policy's SHADOW, or while Redis cannot be reached."""
        return self.reply.id

    async def _send(self, call: Call[Any], name: str, *args: Any) -> Any:
        if not self.reply.reachable:
            # Reserved by the fallback, so settled there.
            answer = getattr(self._core.unreachable, name)(*args)
            return await answer if hasattr(answer, "__await__") else answer
        return await self._core.send(call, name, args, {})

    async def _apply(self, quantity: int | None = None) -> bool:
        self._settled = True
        if self.id is None:
            return True
        return bool(await self._send(calls.apply(self._key, self.id, quantity), "apply", self._key, self.id, quantity))

    async def _release(self) -> bool:
        self._settled = True
        if self.id is None:
            return True
        return bool(await self._send(calls.release(self._key, self.id), "release", self._key, self.id) == 1)

    async def _renew(self, lease: Duration | None = None) -> bool:
        if self.id is None:
            return True
        return bool(await self._send(calls.renew(self._key, self.id, lease), "renew", self._key, self.id, lease))

    async def _enter(self) -> None:
        self._settled = False
        self.reply = await self._core.send(self._call, "reserve", self._args, self._kwargs)
        if not self.reply.allowed:
            raise Denied(self.reply)

    async def _succeed(self) -> bool:
        if self._settle == "release":
            return await self._release()
        try:
            return await self._apply()
        except self._core.library.reply_error as error:
            # An RL.APPLY without a quantity has no mistake that is an ERR, but to name a semaphore's reservation.
            if not self._is_unsure or self._core.library.code(error) != "ERR":
                raise
            return await self._release()

    async def _exit(self, error: BaseException | None) -> None:
        if self._settled:
            return
        try:
            held = await (self._succeed() if error is None else self._release())
        except Exception as trouble:
            # The work's own exception says more, and the lease ends by itself.
            if error is not None or self._core.is_forgiven(trouble):
                return
            raise
        if not held and error is None:
            raise Lapsed(f"the reservation {self.id!r} had lapsed when its work was done")
