"""Locks that a forked child doesn't wait for."""

from __future__ import annotations

import os
import threading
from types import TracebackType

__all__ = ["Lock"]


class Lock:
    """A lock its own thread may take again; in a forked child free, unless the thread that forked holds it.

    Another thread may have held it, and doesn't exist there to give it back.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
