"""Decides whether to ask a server, by how it answered before."""

from __future__ import annotations

from threading import Lock


class Breaker:
    """Closed, it lets every call through. Once calls have failed in a row it opens: further ones are not sent, and one at a
    time may probe whether the server is back. An answer of any kind, an error too, closes it.

    Calls that ran at the same time fail for the same reason, so they count as one failure: `failed` takes the time when
    the call began, and one that began before the last failure was counted adds nothing. Nor does one during which the
    server answered another call.
    """

    #: Failures in a row that open it: one may be an accident of a connection, three in a row are none.
    FAILURES = 3
    #: Seconds from a probe that failed to the next. A server that is back decides again within this and PROBE_SECONDS.
    PAUSE_SECONDS = 0.2
    #: The longest that a probe waits for its answer.
    PROBE_SECONDS = 1.0

    def __init__(self) -> None:
        self.is_open = False
        #: When the server last answered.
        self.answered_at = float("-inf")
        #: Why the last call failed.
        self.error: Exception | None = None
        self._failures = 0
        self._counted_at = float("-inf")
        self._probe_at = 0.0
        self._probing = False
        self._lock = Lock()

    @property
    def has_failed(self) -> bool:
        """Whether the last call got no answer."""
        return self._failures > 0

    def answered(self, now: float) -> None:
        """Notes that a call was answered."""
        self.answered_at = now
        if self._failures:
            with self._lock:
                self._failures = 0
                self.is_open = False

    def failed(self, began: float, now: float, error: Exception) -> bool:
        """Notes that a call that began at `began` got no answer. Returns whether that opens the breaker."""
        with self._lock:
            self.error = error
            if began < self._counted_at or began <= self.answered_at:
                return False
            self._counted_at = now
            self._failures += 1
            if self.is_open or self._failures < self.FAILURES:
                return False
            self.is_open = True
            self._probe_at = now + self.PAUSE_SECONDS
            return True

    def may_probe(self, now: float) -> bool:
        """Returns whether this call is the one that probes, while open. If so, probe_ended must be called."""
        with self._lock:
            if self._probing or now < self._probe_at:
                return False
            self._probing = True
            return True

    def probe_ended(self, now: float) -> None:
        """Notes that the probe ended. answered() or failed() is called with the outcome."""
        with self._lock:
            self._probing = False
            self._probe_at = now + self.PAUSE_SECONDS
