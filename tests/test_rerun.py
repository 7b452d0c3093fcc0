"""The recording for rerun holds the numbers of the compass's trace, at their steps."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sdjepa.compass.suite import choose, read_trace
from sdjepa.compass.trace import wrap
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.interop import rerun
from sdjepa.train.checkpoint import load_checkpoint


class Notebook:
    """Stands in for rerun's recording and writes down what it is told, by entity and step."""

    def __init__(self, name: str, recording_id: str) -> None:
        self.told: dict[str, dict[int | None, object]] = {}
        self._step: int | None = None
        Notebook.last = self

    def save(self, path: Path) -> None:
        path.write_bytes(b"")

    def set_time(self, timeline: str, *, sequence: int) -> None:
        assert timeline == "step"
        self._step = sequence

    def log(self, entity: str, what: object, *, static: bool = False) -> None:
        self.told.setdefault(entity, {})[None if static else self._step] = what

    def flush(self) -> None: ...

    def disconnect(self) -> None: ...


def test_the_recording_holds_the_trace(
    trained: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stand_in = SimpleNamespace(
        RecordingStream=Notebook,
        Scalars=float,
        EncodedImage=lambda contents, media_type: contents,
        Points2D=lambda points, **style: points,
        LineStrips2D=lambda strips, **style: strips[0],
    )
    monkeypatch.setattr(rerun, "_rerun", lambda: stand_in)
    out = rerun.export_rerun(trained, tmp_path / "new" / "x.rrd", episodes=2)
    assert out.exists()
    checkpoint, data = load_checkpoint(trained), Episodes.open(tiny_data)
    chosen = choose(data, checkpoint.config, split="test", count=2, seed=0)
    told = Notebook.last.told
    assert {name.split("/")[0] for name in told} == {f"episode-{e}" for e in chosen}
    for episode in read_trace(checkpoint, data, chosen, k=2).episodes:
        name = f"episode-{episode.index}"
        rows = list(range(episode.num_rows))
        theta = told[f"{name}/theta"]
        assert list(theta) == rows
        assert [theta[row] for row in rows] == pytest.approx(wrap(episode.theta).tolist())
        surprise = told[f"{name}/surprise/latent"]
        assert list(surprise) == episode.step_rows[episode.history :].tolist()
        assert list(surprise.values()) == pytest.approx(episode.latent_error.tolist())
        # In pixels of the frame: the agent is where the frame is least white.
        line = np.asarray(told[f"{name}/path"][None])
        frame = data.frames([data.rows(episode.index).start])[0].astype(int)
        red = frame[..., 0] - frame[..., 2]
        y, x = np.unravel_index(red.argmax(), red.shape)
        assert np.abs(line[0] - [x + 0.5, y + 0.5]).max() < 1.5


def test_without_rerun_the_next_command_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(UserError, match=r"pip install 'sdjepa\[rerun\]'"):
        rerun._rerun()


def test_a_real_recording_is_written_whole(trained: Path, tmp_path: Path):
    pytest.importorskip("rerun")
    out = rerun.export_rerun(trained, tmp_path / "x.rrd", episodes=1)
    assert out.read_bytes().startswith(b"RRF2")
    assert [path.name for path in tmp_path.iterdir()] == ["x.rrd"]
