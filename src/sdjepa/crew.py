"""Worker processes that end with the one that started them: work in, results out, in order.

A job may say how far it is: two numbers in memory that all processes share, written by the worker
whenever it likes and read when somebody looks. Nothing is sent, nothing waits.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker, sharedctypes
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Int

from sdjepa.errors import UserError
from sdjepa.interrupts import held
from sdjepa.runs import cores

Result = TypeVar("Result")
Count = Callable[[int, int], None]  # how far a job is: (episodes, rows)
Job = Future[Result] | Callable[[Callable[[], None]], Result]
LOOK_S = 0.3  # between two looks at the counts while waiting for a job


class Crew(Generic[Result]):
    """Worker processes, or this process where one is enough.

    Ctrl-C ends the workers. Where there are some it is taken by `wait`: this process shares locks
    with the thread that minds them, and one that an interrupt left taken would be waited for.
    """

    def __init__(self, workers: int, *, jobs: int, preload: str) -> None:
        """`workers`: 0 = one per core, never more than there are jobs; `preload`: their module."""
        self._size = min(workers or cores(), jobs)
        self._preload = preload
        self._pool: ProcessPoolExecutor | None = None
        self._shared = sharedctypes.RawArray("q", 2 * jobs)
        self._submitted = 0
        self._held = contextlib.ExitStack()

    @property
    def counts(self) -> Int[np.ndarray, "jobs 2"]:
        """What every job has counted so far; one writer each, so that no lock can be left held."""
        return np.frombuffer(self._shared, dtype=np.int64).reshape(-1, 2)

    def __enter__(self) -> "Crew[Result]":
        if self._size > 1:
            context = forkserver_context(self._preload)
            with contextlib.ExitStack() as stack:
                self._take = stack.enter_context(held())  # a pool half made would leave its locks
                self._pool = ProcessPoolExecutor(
                    self._size, mp_context=context, initializer=_begin, initargs=(self._shared,)
                )
                self._held = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._held:  # raises a Ctrl-C that came since the last `wait`
            if self._pool is None:
                return
            if error is not None:  # nobody waits for what they do
                for worker in list((self._pool._processes or {}).values()):
                    worker.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Job[Result]:
        """`work` is called with the arguments and, behind them, a `Count`."""
        number, self._submitted = self._submitted, self._submitted + 1
        if self._pool is None:
            return functools.partial(_here, self.counts[number], work, arguments)
        return self._pool.submit(_work, number, work, *arguments)

    def wait(self, job: Job[Result], *, look: Callable[[], None] = lambda: None) -> Result:
        """A job's result; `look` is called now and then, when `counts` may have changed."""
        try:
            if not isinstance(job, Future):
                return job(look)
            self._take()
            while not job.done():
                wait_for([job], timeout=LOOK_S)
                self._take()
                look()
            return job.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker was killed, perhaps for lack of memory; run the same command again, "
                "with fewer --workers if it happens twice"
            ) from error


def _here(
    counts: Int[np.ndarray, "2"],
    work: Callable[..., Result],
    arguments: tuple[Any, ...],
    look: Callable[[], None],
) -> Result:
    """A job in this process, looked at whenever it counts."""

    def count(episodes: int, rows: int) -> None:
        counts[:] = episodes, rows
        look()

    return work(*arguments, count)


_counts = np.zeros((0, 2), dtype=np.int64)  # in a worker process: its crew's


def _begin(shared: Any) -> None:
    global _counts
    begin()
    _counts = np.frombuffer(shared, dtype=np.int64).reshape(-1, 2)


def _work(number: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """A job in a worker process."""

    def count(episodes: int, rows: int) -> None:
        _counts[number] = episodes, rows

    return work(*arguments, count)


def begin() -> None:
    """What a worker process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    one_thread()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def forkserver_context(preload: str) -> ForkServerContext:
    """Processes forked from one that has imported `preload`, and holds no thread, GL or GPU.

    They never hear the Ctrl-C that a terminal sends to all: whoever starts them ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    with held():
        resource_tracker.ensure_running()  # which lifts what is blocked when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # is inherited
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _end_with_parent() -> None:
    """A parent that is killed tells nobody; its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def one_thread() -> None:
    """Have this process compute by one thread: sixteen workers with sixteen each stand still."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's software renderer
