"""The thread that owns the file: it does jobs in order, many in one transaction, and beats."""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from postroom.brokers.sqlite.file import BrokerFile, LockTimeout
from postroom.errors import BrokerUnavailable, DeliveryLost

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_TOGETHER = 256


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    peek: Work[Any] | None
    writes: bool
    durable: bool
    deadline: float
    future: Future[Any] = field(default_factory=Future)

    def begin(self) -> bool:
        """Whether it still is to be done; it cannot be cancelled any more then."""
        return self.future.set_running_or_notify_cancel()

    def settle(self, answer: object, failure: Exception | None) -> None:
        """Give its owner the answer, or raise the failure there."""
        if not self.future.running() and not self.begin():
            return
        if failure is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(failure)


class Worker:
    """Runs jobs on one thread and one connection.

    Jobs that wait at the same moment share a transaction, so that acknowledgements and publishes
    of many tasks cost one commit. Between jobs, every `interval` seconds, it asks `beat` for
    work of its own; `committed` is called after each commit. Both are called on the thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        beat: Callable[[], Work[None] | None],
        interval: float,
        committed: Callable[[], None],
    ) -> None:
        """Start the thread; the file is opened by the first job."""
        self._file = BrokerFile(path)
        self._beat = beat
        self._interval = interval
        self._committed = committed
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="postroom-broker", daemon=True)
        self._thread.start()

    def write(self, work: Work[T], *, patience: float, durable: bool = False) -> Future[T]:
        """Run the work in a write transaction, waiting `patience` seconds for the lock.

        The future can be cancelled until the lock is there, and fails with BrokerUnavailable or
        OutcomeUnknown as `BrokerFile.transaction` says, or with the work's own DeliveryLost,
        before which it must not have written.
        """
        return self._submit(work, patience, writes=True, durable=durable)

    def write_unless(self, peek: Work[T | None], work: Work[T], *, patience: float) -> Future[T]:
        """Run the work in a write transaction, unless `peek` finds the answer by reading."""
        return self._submit(work, patience, peek=peek, writes=True)

    def read(self, work: Work[T], *, patience: float) -> Future[T]:
        """Run the work without a transaction."""
        return self._submit(work, patience)

    def stop(self) -> None:
        """Do what was asked before, then end the thread and wait for it."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.put(None)
        self._thread.join()

    def _submit(
        self,
        work: Work[T],
        patience: float,
        *,
        peek: Work[T | None] | None = None,
        writes: bool = False,
        durable: bool = False,
    ) -> Future[T]:
        job = _Job(work, peek, writes, durable, time.monotonic() + patience)
        with self._lock:
            if self._stopped:
                job.settle(None, BrokerUnavailable("the embedded broker is closed"))
            else:
                self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        beat_at = time.monotonic() + self._interval
        try:
            while True:
                jobs = self._gather(beat_at)
                stop = None in jobs
                self._perform([job for job in jobs if job is not None])
                if stop:
                    return
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._interval * (1 if self._do_beat() else 0.1)
        finally:
            self._file.close()

    def _gather(self, until: float) -> list[_Job | None]:
        jobs: list[_Job | None] = []
        with suppress(Empty):
            jobs.append(self._jobs.get(timeout=max(until - time.monotonic(), 0.0)))
            while len(jobs) < _TOGETHER and jobs[-1] is not None:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _do_beat(self) -> bool:
        if (work := self._beat()) is None:
            return True
        try:
            deadline = time.monotonic() + self._interval / 2
            with self._file.transaction(durable=False, deadline=deadline) as connection:
                work(connection)
        except Exception:  # noqa: BLE001
            return False  # tried again soon; the jobs' owners are told what is wrong
        return True

    def _perform(self, jobs: Sequence[_Job]) -> None:
        for writes, group in groupby(jobs, lambda job: job.writes):
            if writes:
                self._write([job for job in group if job.peek is None or self._needs_write(job)])
            else:
                for job in group:
                    job.settle(*self._read(job, job.work))

    def _needs_write(self, job: _Job) -> bool:
        answer, failure = self._read(job, job.peek or job.work)
        if answer is None and failure is None:
            return True
        job.settle(answer, failure)
        return False

    def _read(self, job: _Job, work: Work[Any]) -> tuple[Any, Exception | None]:
        try:
            with self._file.reading(deadline=job.deadline) as connection:
                return work(connection), None
        except Exception as failure:  # noqa: BLE001
            return None, failure  # the job's owner raises it

    def _write(self, jobs: Sequence[_Job]) -> None:
        begun: list[_Job] = []
        answers: list[tuple[Any, Exception | None]] = []
        while jobs:
            durable = any(job.durable for job in jobs)
            deadline = min(job.deadline for job in jobs)
            try:
                with self._file.transaction(durable=durable, deadline=deadline) as connection:
                    begun = [job for job in jobs if job.begin()]
                    answers = [_attempt(job, connection) for job in begun]
            except Exception as failure:  # noqa: BLE001
                if isinstance(failure, LockTimeout) and not begun:
                    jobs = _fail_late(jobs, failure)
                    continue
                for job in begun or jobs:
                    job.settle(None, failure)
                return
            for job, outcome in zip(begun, answers, strict=True):
                job.settle(*outcome)
            if any(job.peek is None for job in begun):
                self._committed()  # what only took has nothing new for others
            return


def _attempt(job: _Job, connection: sqlite3.Connection) -> tuple[Any, Exception | None]:
    try:
        return job.work(connection), None
    except DeliveryLost as lost:
        return None, lost


def _fail_late(jobs: Sequence[_Job], failure: Exception) -> list[_Job]:
    now = time.monotonic()
    for job in jobs:
        if job.deadline <= now:
            job.settle(None, failure)
    return [job for job in jobs if job.deadline > now]
