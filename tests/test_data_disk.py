"""A full disk: one line, nothing half-written, and the same command finishes the work later."""

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdjepa.config import Collect
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.frames import frame_store
from sdjepa.data.sink import Sink
from sdjepa.errors import UserError

SETTINGS = Collect(env="tworoom", episodes=12, steps=40, size=64, workers=1)
# A limit on file size fails a write as a full disk does, and needs no privileges.
SCRIPT = """
import resource, sys
from pathlib import Path
from sdjepa.config import Collect
from sdjepa.data.{module} import {work}
from sdjepa.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    {call}
except UserError as error:
    print(error)
    sys.exit(2)
"""


def limited(limit: int, *, module: str, work: str, call: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(module=module, work=work, limit=limit, call=call)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return collect(SETTINGS, tmp_path_factory.mktemp("data") / "set")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [20_000, 250_000])  # at the first part; while joining the parts
def test_collecting_onto_a_full_disk_can_be_continued(dataset, tmp_path, limit):
    out = tmp_path / "set"
    settings = f"Collect.model_validate_json({SETTINGS.model_dump_json()!r})"
    ended = limited(
        limit, module="collect", work="collect", call=f"collect({settings}, Path({str(out)!r}))"
    )
    assert ended.returncode == 2, ended.stderr
    assert "could not write" in ended.stdout
    assert len(ended.stdout.splitlines()) == 1
    assert not (out / "episodes.h5").exists()
    assert not list(out.rglob("*.partial"))
    collect(SETTINGS, out)
    ours, theirs = (json.loads((p / "dataset.json").read_text()) for p in (dataset, out))
    assert ours["columns"] == theirs["columns"]


@pytest.mark.slow
def test_converting_onto_a_full_disk_leaves_nothing(dataset, tmp_path):
    out = tmp_path / "copy"
    call = f"convert(Path({str(dataset)!r}), Path({str(out)!r}))"
    ended = limited(150_000, module="convert", work="convert", call=call)
    assert ended.returncode == 2, ended.stderr
    assert "could not write" in ended.stdout
    assert not out.exists()
    with Episodes.open(dataset) as data:
        assert data.num_rows == 12 * 41


@pytest.mark.slow
def test_the_last_bytes_are_refused_as_the_first_are(dataset, tmp_path):
    """HDF5 writes columns and its index when it closes a file, and dies of a failure there."""
    whole = (dataset / "episodes.h5").stat().st_size
    for short in (60_000, 30_000, 15_000, 8_000, 5_000, 3_000, 2_000, 1_000, 500):
        out = tmp_path / f"copy-{short}"
        call = f"convert(Path({str(dataset)!r}), Path({str(out)!r}))"
        ended = limited(whole - short, module="convert", work="convert", call=call)
        assert ended.returncode == 2, ended.stderr
        assert "could not write" in ended.stdout
        assert len(ended.stdout.splitlines()) == 1
        assert ended.stderr == ""
        assert not out.exists()


@given(
    st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=60)), max_size=20),
    st.integers(0, 400),
)
def test_a_sink_reads_back_what_was_written_whether_the_disk_took_it_or_not(writes, room):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        sink, like = Sink(Path(folder) / "file"), io.BytesIO()

        def narrow(file: int, data: memoryview, place: int) -> int:
            if place >= room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwrite(file, data[: room - place], place)

        pwrite = os.pwrite
        patch.setattr(os, "pwrite", narrow)
        for place, data in writes:
            for file in (sink, like):
                file.seek(place)
                file.write(memoryview(data))
        sink.seek(0)
        assert sink.read() == like.getvalue()
        if like.tell() and len(like.getvalue()) > room:
            with pytest.raises(OSError, match="No space left"):
                sink.check()
        else:
            sink.check()
        sink.close()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "No space left on device; free some space, and run the same command again"),
        (errno.EACCES, "Permission denied; make it writable, and run the same command again"),
    ],
)
@pytest.mark.parametrize("when", ["open", "pwrite", "fsync"])
def test_what_helps_is_said_by_why_it_was_refused(tmp_path, monkeypatch, code, remedy, when):
    real = getattr(os, when)

    def refuse(target, *given):
        if when == "open" and not str(target).endswith(".partial"):
            return real(target, *given)
        raise OSError(code, os.strerror(code))

    few = SETTINGS.model_copy(update={"episodes": 3, "steps": 8, "size": 16})
    whole = collect(few, tmp_path / "set")
    monkeypatch.setattr(os, when, refuse)
    with pytest.raises(UserError, match=f"could not write .*episodes.h5: {remedy}"):
        convert(whole, tmp_path / "copy")
    monkeypatch.undo()
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to_all_the_same(tmp_path, monkeypatch, code):
    def none(*given):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", none)
    few = SETTINGS.model_copy(update={"episodes": 3, "steps": 8, "size": 16})
    out = collect(few, tmp_path / "set")
    with Episodes.open(out) as data:
        assert np.array_equal(frame_store(data), data.frames(range(data.num_rows)))
