"""A tiny real dataset and a tiny trained run, made once per test process."""

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdjepa.config import Collect, Config
from sdjepa.data.collect import collect
from sdjepa.resolve import resolve
from sdjepa.runs import Run
from sdjepa.train.loop import complete, train
from small import SIZES

# Whoever started the tests in the background had a shell make them ignore Ctrl-C, children too.
signal.signal(signal.SIGINT, signal.default_int_handler)
FREE = ("action_dim", "frame_skip")  # these come from the dataset
TINY = [f"model.{key}={value}" for key, value in SIZES.items() if key not in FREE]
TINY += ["train.batch=8", "train.precision=fp32", "train.device=cpu", "train.steps=12"]
TINY += ["train.log_every=1", "train.checkpoint_every=4", "train.validate_every=6"]
TINY += ["objectives.sigreg_directions=16", "plan.candidates=16", "plan.elites=4"]
TINY += ["plan.iterations=2", "score.protocol=strict", "score.tasks=4", "train.learning_rate=1e-3"]


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 Two-Room episodes of 40 steps at 28 pixels, a quarter of them held out."""
    settings = Collect(
        env="tworoom",
        episodes=20,
        steps=40,
        size=28,
        workers=1,
        validation_share=0.2,
        test_share=0.25,
    )
    return collect(settings, tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="session")
def tiny_config(tiny_data: Path) -> Config:
    """Twelve steps of a tiny model on that data; dropout stays on."""
    return complete(resolve(settings=[f"data.path={tiny_data}", *TINY]))


@pytest.fixture(scope="session")
def trained(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained without interruption; tests must not write into it."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(Run.create(path, tiny_config))
    return path


@pytest.fixture
def a_run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


@pytest.fixture
def sdjepa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command line in this process: words in, (exit code, standard output, error) out."""
    from sdjepa.cli import main

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sdjepa", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright; files that use it skip themselves where it is not."""
    from playwright import sync_api

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        yield launched
        launched.close()
