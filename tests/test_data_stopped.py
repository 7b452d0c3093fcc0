"""Ctrl-C in a verb for datasets: one line that nothing was written, and that is so."""

import shutil
from pathlib import Path

import pytest

from sdjepa.data import audit, card, convert, pack
from sdjepa.data.audit import audit as run_audit
from sdjepa.data.card import card as run_card
from sdjepa.data.convert import convert as run_convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import write_pack


@pytest.mark.parametrize(
    ("module", "work", "words"),
    [
        (audit, "audit", "data audit {data}"),
        (card, "card", "data card {data}"),
        (convert, "convert", "data convert {data} {out}"),
        (pack, "write_pack", "data pack {data} {out} --tasks 2 --offset 5"),
    ],
)
def test_a_verb_that_is_stopped_says_so_in_one_line(
    sdjepa, tiny_data, tmp_path, monkeypatch, module, work, words
):
    def stopped(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, work, stopped)
    code, out, err = sdjepa(*words.format(data=tiny_data, out=tmp_path / "out").split())
    assert (code, out, err.strip()) == (130, "", "stopped; nothing was written")


def stop(done: int, total: int, note: str = "") -> None:
    raise KeyboardInterrupt


def test_nothing_is_written_by_what_is_stopped(tiny_data, tmp_path):
    path = Path(
        shutil.copytree(tiny_data, tmp_path / "set", ignore=shutil.ignore_patterns("card*"))
    )
    before, out = sorted(path.iterdir()), tmp_path / "out"
    with Episodes.open(path) as data:
        for work in (
            lambda: run_audit(path, progress=stop),
            lambda: run_card(path, progress=stop),
            lambda: run_convert(path, out, progress=stop),
            lambda: write_pack(
                data, [(0, 1)], out, offset=5, protocol="lewm", seed=42, progress=stop
            ),
        ):
            with pytest.raises(KeyboardInterrupt):
                work()
    assert sorted(path.iterdir()) == before
    assert not out.exists()
