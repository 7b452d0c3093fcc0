"""Worker processes that end with the one that started them: work in, results out, in order."""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

import torch

from sdjepa.errors import UserError

Result = TypeVar("Result")
Job = Future[Result] | Callable[[], Result]


class Crew(Generic[Result]):
    """Worker processes, or this process where one is enough."""

    def __init__(self, workers: int, *, jobs: int) -> None:
        """`workers`: 0 = one per core; never more than there are jobs."""
        self._size = min(workers or os.cpu_count() or 1, jobs)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Crew[Result]":
        if self._size > 1:
            # forkserver: torch is imported once, children are forked from a process that holds no
            # threads, no GL context and no GPU.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["sdjepa.data.collect"])
            with _undisturbed(deaf=True):
                forkserver.ensure_running()
            self._pool = ProcessPoolExecutor(self._size, mp_context=context, initializer=begin)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._pool is None:
            return
        if error is not None:  # nobody waits for what they do
            for worker in list((self._pool._processes or {}).values()):
                worker.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Job[Result]:
        if self._pool is None:
            return functools.partial(work, *arguments)
        with _undisturbed():
            return self._pool.submit(work, *arguments)

    def wait(self, job: Job[Result]) -> Result:
        try:
            return job.result() if isinstance(job, Future) else job()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker was killed, perhaps for lack of memory; run the same command again to "
                "continue, with fewer --workers if it happens twice"
            ) from error


def begin() -> None:
    """What a worker process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    one_thread()
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextlib.contextmanager
def _undisturbed(*, deaf: bool = False) -> Iterator[None]:
    """Ctrl-C waits until this is done: a worker whose start it cuts in two is nobody's to end.

    What is begun within while `deaf` never hears it, though a terminal sends it to all: whoever
    started them ends them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    waiting = signal.SIG_IGN if deaf else lambda number, frame: heard.append(number)
    before = signal.signal(signal.SIGINT, waiting)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


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
