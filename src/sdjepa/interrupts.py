"""Ctrl-C where it can be taken.

Python raises KeyboardInterrupt wherever the main thread happens to be. Two places lose it or do not
survive it: a function that a C library calls, which cannot pass it on, and the moment between the
taking of a lock and the block that gives it back.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until this block is left, or until the function it is given is called.

    Only of the main thread, others are not interrupted; and only where it is heard: a shell has
    what it starts in the background ignore it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(signal.getsignal(signal.SIGINT)):
        yield lambda: None
        return
    heard: list[int] = []

    def take() -> None:
        if heard:
            heard.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield take
    finally:
        signal.signal(signal.SIGINT, before)
    take()
