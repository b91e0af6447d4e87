"""A circuit breaker: it decides by a server's earlier answers whether to send it further calls."""

from __future__ import annotations

import logging
from threading import Lock

logger = logging.getLogger("redis_ratelimit")
# Programs that do not set up logging see nothing.
logger.addHandler(logging.NullHandler())


class Breaker:
    """The breaker of one server. While it is closed, all calls are sent. After several failures in a row it opens: no call
    is sent any more, and one probe at a time asks whether the server is back. Any answer closes it, even an error reply.

    Calls that run at the same time fail for the same reason, so they count as one failure: a call that began before the last
    counted failure does not count. Nor does a call during which the server answered another.
    """

    #: Consecutive failures that open the breaker. One may be due to a single broken connection; three in a row rarely are.
    FAILURES = 3
    #: Seconds between two probes. A server that is back is asked again within this time and PROBE_SECONDS.
    PAUSE_SECONDS = 0.2
    #: The longest that a probe waits for its answer.
    PROBE_SECONDS = 1.0

    def __init__(self, name: str) -> None:
        #: The name of the server.
        self.name = name
        self.is_open = False
        #: The time of the server's last answer, by time.monotonic.
        self.answered_at = float("-inf")
        #: The error of the last call that failed.
        self.error: Exception | None = None
        self._failures = 0
        self._counted_at = float("-inf")
        self._probe_at = 0.0
        self._probing = False
        self._lock = Lock()

    @property
    def has_failed(self) -> bool:
        """True if the last call got no answer."""
        return self._failures > 0

    def record_reply(self, now: float) -> None:
        """Records that a call was answered."""
        self.answered_at = now
        if self._failures:
            with self._lock:
                was_open, self._failures, self.is_open = self.is_open, 0, False
            if was_open:
                logger.warning("%s answers again", self.name)

    def record_failure(self, began: float, now: float, error: Exception) -> bool:
        """Records that a call that began at `began` got no answer. Returns whether that opens the breaker."""
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
        logger.warning("%s does not answer, and is not asked until a probe is answered: %s", self.name, error)
        return True

    def may_probe(self, now: float) -> bool:
        """Returns whether the caller may probe the server of an open breaker. If so, it must call end_probe()."""
        with self._lock:
            if self._probing or now < self._probe_at:
                return False
            self._probing = True
            return True

    def end_probe(self, now: float) -> None:
        """Records that the probe has ended. Its outcome is reported with record_reply() or record_failure()."""
        with self._lock:
            self._probing = False
            self._probe_at = now + self.PAUSE_SECONDS
