"""The right to write a study: its driver's one connection, transactions on it, and the lease behind them.

Each transaction first checks that the driver still owns the study. A thread of its own keeps the lease alive while the
driver is busy elsewhere. What is written is in `writing`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from autodropout.search.database import translated
from autodropout.search.errors import LedgerError, LostLease, StorageError
from autodropout.search.lease import Lease
from autodropout.search.reading import Reader
from autodropout.search.url import Address


class Owned(Reader):
    """A study and the right to write it. Close it, or use it as a context manager, to let another driver in."""

    def __init__(
        self, address: Address, readers: Engine, engine: Engine, connection: Connection, name: str, lease: Lease
    ) -> None:
        self._connection = connection
        self._writers = engine
        self._lease = lease
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._thread: int | None = None  # that has a transaction open
        self._doomed = False  # a statement of the open transaction failed
        self._lost: str | None = None
        self._closing = threading.Event()
        super().__init__(address, readers, name)
        self._heart = threading.Thread(target=self._keep_alive, name=f"lease of {name}", daemon=True)
        self._heart.start()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are kept together or not at all. An inner one that raises is undone alone."""
        if os.getpid() != self._process:
            raise LostLease(f"study {self.info.name!r} is driven by process {self._process}, this is a fork of it")
        with self._lock, translated(self._address):
            if self._connection.in_transaction():
                with self._inner():
                    yield
            else:
                with self._outer():
                    yield

    def heartbeat(self) -> None:
        """Say that this driver is alive; LostLease when another has taken over."""
        with self.transaction():
            self._lease.beat(self._connection)

    def close(self) -> None:
        """Let another driver in. Trials that are RUNNING stay so until it queues them again."""
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        self._heart.join()
        try:
            with suppress(LedgerError), self.transaction():  # lost or unreachable: there is nothing left to release
                self._lease.release(self._connection)
        finally:
            self._lost = f"study {self.info.name!r} was closed by its driver"
            self._connection.close()
            self._writers.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reading(self) -> AbstractContextManager[Connection]:
        """Inside a transaction a driver sees what it has written so far; outside it reads as everybody does."""
        return self._inside() if self._thread == threading.get_ident() else super()._reading()

    @contextmanager
    def _inside(self) -> Iterator[Connection]:
        with translated(self._address), self._dooming():
            yield self._connection

    @contextmanager
    def _outer(self) -> Iterator[None]:
        if self._lost:
            raise LostLease(self._lost)
        self._thread = threading.get_ident()
        try:
            with self._connection.begin():
                self._lease.check(self._connection)
                yield
                if self._doomed:
                    raise StorageError("a part of this transaction failed: nothing of it was kept")
        except LostLease as error:
            self._lost = str(error)
            raise
        finally:
            self._thread, self._doomed = None, False
            if self._connection.invalidated:  # and the lock went with the connection: do not connect anew
                self._lost = f"study {self.info.name!r}: the connection that owned it broke. Resume the study"

    @contextmanager
    def _inner(self) -> Iterator[None]:
        with self._dooming():
            part = self._connection.begin_nested()
            try:
                yield
            except BaseException:
                try:
                    part.rollback()
                except DBAPIError:  # the database has undone the whole transaction; what ended it says why
                    self._doomed = True
                raise
            part.commit()

    @contextmanager
    def _dooming(self) -> Iterator[None]:
        """After an error the database may have undone the open transaction: then what follows must not be kept."""
        if self._doomed:
            raise StorageError("an earlier part of this transaction failed: nothing of it will be kept")
        try:
            yield
        except DBAPIError:
            self._doomed = True
            raise

    def _keep_alive(self) -> None:
        while not self._closing.wait(self._lease.seconds / 3):
            try:
                self.heartbeat()
            except LostLease:
                return  # the next write says so to the driver
            except StorageError:
                continue  # the disk is full or busy: a later beat may succeed, and the fence holds in any case
