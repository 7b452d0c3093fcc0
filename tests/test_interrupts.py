"""Ctrl-C is neither lost nor what leaves a process hanging, wherever it finds it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest

from sdjepa.data import writer as writing
from sdjepa.data.packing import pack
from sdjepa.data.sink import Sink
from sdjepa.data.writer import Writer
from sdjepa.interrupts import held


def interrupt():
    """As a terminal does; Python looks at it before it goes on."""
    os.kill(os.getpid(), signal.SIGINT)


def test_it_waits_until_it_may_come():
    done = []

    def work():
        with held():
            interrupt()
            done.append("all")

    def longer():
        with held() as take:
            take()
            done.append("more")
            interrupt()
            take()
            done.append("never")

    for each in (work, longer, interrupt):  # the last as before
        with pytest.raises(KeyboardInterrupt):
            each()
    assert done == ["all", "more"]


def test_an_error_goes_before_it():
    def work():
        with held():
            interrupt()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()


def test_what_is_ignored_stays_so():
    """A shell has what it starts in the background ignore Ctrl-C, which is not meant for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held() as take:
            interrupt()
            take()
        interrupt()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_is_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with held() as take:
            seen.append(signal.getsignal(signal.SIGINT))
            take()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def episode(rows):
    columns = {"action": np.zeros((rows, 2), dtype=np.float32)}
    return pack(columns, list(np.zeros((rows, 8, 8, 3), dtype=np.uint8)))


def write(out, *, before=lambda: None, episodes=3):
    with Writer(out, image_size=8) as writer:
        for _ in range(episodes):
            writer.add(episode(3))
        before()
        return writer.finish({"env": "none"}, split={"train": [0], "validation": [], "test": []})


@pytest.mark.parametrize("call", ["write", "truncate", "seek"])
@pytest.mark.parametrize("late", [False, True])
def test_it_is_not_lost_in_what_hdf5_calls(call, late, tmp_path, monkeypatch):
    """A C library calls the sink and drops what is raised there, or takes it for a bad disk."""
    real, calls = getattr(Sink, call), []

    def spied(self, *given):
        calls.append(call)
        interrupt()
        return real(self, *given)

    def spy():
        monkeypatch.setattr(Sink, call, spied)

    if not late:
        spy()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "set", before=spy)
    assert calls
    assert not (tmp_path / "set").exists()


def test_it_may_come_before_a_file_is_opened(tmp_path, monkeypatch):
    """Between the call and the block that holds it there is nothing to undo yet."""

    @contextlib.contextmanager
    def just_before():
        interrupt()
        with held() as take:
            yield take

    monkeypatch.setattr(writing, "held", just_before)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_writer_that_nothing_disturbs_is_not_disturbed(tmp_path):
    with h5py.File(write(tmp_path / "set") / "episodes.h5") as file:
        assert file["pixels"].shape == (9, 8, 8, 3)


LOCKED = """
import os, signal, sys, threading, time
from sdjepa.crew import Crew

nth, main, seen = int(sys.argv[1]), threading.get_ident(), 0
enter = threading.Condition.__enter__


def taken(self):
    global seen
    got = enter(self)
    if threading.get_ident() == main:
        seen += 1
        if seen == nth:
            os.kill(main_pid, signal.SIGINT)
    return got


def work(number, count):
    time.sleep(0.02)
    return number


if __name__ == "__main__":
    main_pid = os.getpid()
    try:
        with Crew(2, jobs=12, preload="sdjepa.crew") as crew:
            jobs = [crew.submit(work, number) for number in range(12)]
            threading.Condition.__enter__ = taken
            print([crew.wait(job) for job in jobs])
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.slow
def test_a_lock_is_not_left_taken(tmp_path):
    """Between the taking of a lock and the block that gives it back, Ctrl-C would leave it so."""
    path = tmp_path / "script.py"
    path.write_text(LOCKED)
    children = [
        subprocess.Popen([sys.executable, str(path), str(nth)], stdout=subprocess.PIPE, text=True)
        for nth in (1, 2, 3)
    ]
    for child in children:
        try:
            assert child.communicate(timeout=300)[0] == "stopped\n"
        finally:
            child.kill()


LOST = """
import os, signal, time
from sdjepa.crew import Crew


def work(main, count):
    os.kill(main, signal.SIGINT)  # as a scheduler asks all, and this one goes first
    os._exit(1)


if __name__ == "__main__":
    try:
        with Crew(2, jobs=2, preload="sdjepa.crew") as crew:
            job = crew.submit(work, os.getpid())
            while not job.done():
                time.sleep(0.01)
            crew.submit(work, os.getpid())  # refused, for want of workers
    except KeyboardInterrupt:
        print("stopped")
"""


@pytest.mark.slow
def test_a_worker_that_ends_because_all_were_asked_to_is_not_called_lost(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LOST)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "stopped"), ended.stderr
