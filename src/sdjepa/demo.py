"""The whole path at small size, for `sdjepa demo`: each stage once, unless it is done already."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sdjepa.compass.suite import compass
from sdjepa.config import Config
from sdjepa.data.collect import collect
from sdjepa.report.page import report
from sdjepa.report.picture import picture
from sdjepa.resolve import resolve
from sdjepa.runs import Progress, Run, read_json
from sdjepa.scoring.trained import score
from sdjepa.train.loop import complete, train

RECIPE = Path(__file__).parent / "recipes" / "demo.toml"


def demo(
    out: Path,
    *,
    recipe: Path | None,
    settings: Sequence[str],
    bar: Callable[[str], AbstractContextManager[Progress]],
    say: Callable[[str], None],
) -> Path:
    """Collect, train, score, read, report; returns the page."""
    data = out / "data"
    config = resolve(recipe or RECIPE, settings=[f"data.path={data}", *settings])
    with Run(out).lock():
        if not (data / "dataset.json").exists():
            with bar("1 collect") as progress:
                collect(config.collect, data, progress=progress)
        run, finished = _open(out, config)
        if not finished:
            with bar("2 train") as progress:
                train(run, resume=True, progress=progress)
        with bar("3 score") as progress:
            scored = read_json(score(out, progress=progress)[0])
        low, high = scored["wilson95"]
        say(
            f"planner {scored['success_rate']:.0f} % of {scored['num_tasks']} held-out tasks "
            f"(95 % interval {low:.0f} to {high:.0f}); floors: "
            + ", ".join(f"{name} {rate:.0f} %" for name, rate in scored["floors"].items())
        )
        with bar("4 compass") as progress:
            for path in compass(run, progress=progress):
                result = read_json(path)
                say(f"{result['title']}: {result['verdict']}")
        picture(out, out / "picture.png")
        return report([out], out=out / "report.html")


def _open(out: Path, config: Config) -> tuple[Run, bool]:
    """The demo's run, made if need be, and whether it has been trained to the end."""
    if not (out / "config.toml").exists():
        return Run.create(out, complete(config)), False
    run = Run.open(out)
    logged = run.metrics()
    steps = run.config.train.steps
    return run, bool(steps and logged and logged[-1]["step"] >= steps)
