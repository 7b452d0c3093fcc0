"""Runs in, a folder small enough to keep under version control out, with one table of them all.

    FOLDER/README.md             the table, written anew from the files below
    FOLDER/NAME/                 a run: settings, metrics, scores without films, compass, data card
    FOLDER/NAME/checkpoints/     only if asked for: the latest weights in bf16
    FOLDER/NAME/pack/            with them: held-out tasks to try them on without the dataset

What is kept is still a run: `score`, `compass`, `report` and `watch` take it where its weights are.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdjepa.config import Config, Plan
from sdjepa.errors import UserError
from sdjepa.runs import Run, read_json, write_atomic, write_json

LARGEST_BYTES = 2_000_000  # of a file of the compass; latents of whole episodes stay behind
CARD_FILES = ("card.md", "card.json", "card.png", "dataset.json")
MODEL_FILES = ("config.json", "stats.json", "provenance.json")


def keep(run: Run, folder: Path, *, name: str | None = None, weights: bool = False) -> Path:
    """Copy what of `run` is worth keeping into `folder`."""
    out = folder / (name or run.path.name)
    if out.resolve() == run.path.resolve():
        raise UserError(f"{run.path} is already there; give the run itself")
    config = run.config
    for file in ("config.toml", "manifest.json", "metrics.jsonl", "report.html"):
        if (run.path / file).exists():
            _copy(run.path / file, out / file)
    for score in sorted((run.path / "scores").glob("*.json")):
        record = read_json(score)
        record.pop("rollouts", None)  # films of a few tasks, most of the file
        write_json(out / "scores" / score.name, record)
    for part in ("compass", "tasks"):
        for file in sorted((run.path / part).glob("*.json")):
            if file.stat().st_size <= LARGEST_BYTES:
                _copy(file, out / part / file.name)
    for file in CARD_FILES:
        # What a folder like this one has kept, or the dataset's own: another may stand there now.
        for source in (run.path / "data" / file, Path(config.data.path) / file):
            if source.exists():
                _copy(source, out / "data" / file)
                break
    if weights:
        _keep_weights(run, out)
        _keep_tasks(run, out)
    return out


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _keep_weights(run: Run, out: Path) -> None:
    from safetensors.torch import load_file

    from sdjepa.train.checkpoint import find_checkpoint, save_tensors

    found = find_checkpoint(run.path)
    kept = out / "checkpoints" / "latest"
    for file in MODEL_FILES:
        _copy(found / file, kept / file)
    tensors = load_file(found / "model.safetensors")
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors.items()}
    temporary = kept / ".model.partial"
    save_tensors(half, temporary)
    temporary.replace(kept / "model.safetensors")


def _keep_tasks(run: Run, out: Path) -> None:
    """Tasks of the strict protocol, from the dataset or, if that is gone, as kept before."""
    from sdjepa.data.episodes import Episodes
    from sdjepa.data.pack import write_pack
    from sdjepa.score import task_list

    config, kept = run.config, out / "pack"
    if kept.exists():
        return
    if Path(config.data.path).exists():
        strict = config.score.model_copy(update={"protocol": "strict"})
        with Episodes.open(Path(config.data.path)) as data:
            tasks = task_list(data, strict).tasks
            starts = [(task.episode, task.start) for task in tasks]
            chosen = {name: getattr(strict, name) for name in ("offset", "protocol", "seed")}
            write_pack(data, starts, kept, **chosen)
    elif (run.path / "pack").exists():
        shutil.copytree(run.path / "pack", kept)


@dataclass(frozen=True)
class Line:
    """One run of the table."""

    name: str
    env: str
    config: Config
    commit: str
    recipe: str
    steps: int
    minutes: float | None
    frames: int | None  # of the dataset
    scores: tuple[dict[str, Any], ...]


def lines(folder: Path) -> list[Line]:
    """Every run of the folder, by environment and name."""
    found = []
    for path in sorted(folder.glob("*/config.toml")):
        run = Run.open(path.parent)
        metrics = run.metrics()
        manifest = _read(run.path / "manifest.json")
        card = _read(run.path / "data" / "dataset.json")
        seconds = metrics[-1].get("seconds") if metrics else None
        scores = tuple(read_json(file) for file in sorted((run.path / "scores").glob("*.json")))
        envs = [known["env"] for known in (card, *scores) if "env" in known]
        found.append(
            Line(
                name=path.parent.name,
                env=envs[0] if envs else run.config.collect.env,
                config=run.config,
                commit=_commit(manifest.get("code", {})),
                recipe=_recipe(manifest.get("command", [])),
                steps=int(metrics[-1]["step"]) if metrics else 0,
                minutes=seconds / 60 if seconds else None,
                frames=card.get("num_rows"),
                scores=scores,
            )
        )
    return sorted(found, key=lambda line: (line.env, line.name))


def _commit(code: dict[str, Any]) -> str:
    return code.get("commit", "")[:7] + ("+" if code.get("changed") else "")


def _recipe(command: list[str]) -> str:
    """The recipe that was named on the command line."""
    named = [Path(word).stem for word in command if word.endswith(".toml")]
    return named[0] if named else "-"


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


HEAD = """# Results

Written by `sdjepa ledger` from the files in this folder; do not edit. Success is in percent with
its 95 % interval; floors (doing nothing, uniform random actions, replaying) are on the same tasks.

The table of runs shows two planners, both with 300 candidates, 30 rounds and goals 25 steps ahead:
the paper's, and one that plans anew for every block. The cost is content, for A0 the whole latent.
Of several such scores the one on most tasks is shown. The tables below it have them all. A commit
with a + had changes on top.

"""
SHOWN = ("lewm", "strict")


def table(folder: Path) -> Path:
    """Write the folder's README.md."""
    runs = lines(folder)
    rows = [
        "| run | environment | rung, k, seed | recipe | commit | frames | steps | minutes "
        "| lewm, the paper's planner | strict | lewm, a plan for every block | strict |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for line in runs:
        config = line.config
        scores = [_shown(line, name, anew=anew) for anew in (False, True) for name in SHOWN]
        rows.append(
            f"| [{line.name}]({line.name}) | {line.env} | {config.rung}, {config.model.k}, "
            f"{config.train.seed} | {line.recipe} | {line.commit or '-'} | {_number(line.frames)} "
            f"| {line.steps:,} | {'-' if line.minutes is None else f'{line.minutes:.1f}'} "
            f"| {' | '.join(scores)} |"
        )
    text = HEAD + "\n".join(rows) + "\n"
    for title, chosen in (("Scores", False), ("Validation tasks, to choose by", True)):
        found = [
            _scored(line, record)
            for line in runs
            for record in line.scores
            if (record["protocol"] == "choose") is chosen
        ]
        if found:
            text += f"\n## {title}\n\n" + "\n".join([*SCORED, *found]) + "\n"
    write_atomic(folder / "README.md", text)
    return folder / "README.md"


SCORED = (
    "| run | protocol | tasks | offset | cost | search | success | nothing | random | replay |",
    "|---|---|---|---:|---|---|---:|---:|---:|---:|",
)


def _shown(line: Line, protocol: str, *, anew: bool) -> str:
    """The score that stands for a protocol and a planner in the table of runs."""
    cost, published = ("content" if line.config.model.k else "full"), Plan()
    fitting = []
    for record in line.scores:
        plan = record["config"]["plan"]
        last = (record.get("checkpoint") or {}).get("step", line.steps) == line.steps
        size = (plan["solver"], plan["candidates"], plan["iterations"])
        usual = size == (published.solver, published.candidates, published.iterations)
        theirs = said_search(plan | {"precision": published.precision}) == said_search(
            published.model_dump() | {"cost": cost}
        )
        if (
            last
            and usual
            and (record["protocol"], record["cost"]) == (protocol, cost)
            and record["config"]["score"]["offset"] == 25
            and (plan["replan"] == 1 if anew else theirs)
        ):
            fitting.append(record)
    return _success(max(fitting, key=lambda record: record["num_tasks"])) if fitting else "-"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def said_search(plan: dict[str, Any]) -> str:
    """A score's search in a few words: what always counts, and what is not the benchmark's."""
    said = f"{plan['solver']} {plan['candidates']} x {plan['iterations']}, replan {plan['replan']}"
    said += f", history {plan.get('history', 1)}"
    own = Plan()
    for key in (
        "pull",
        "horizon",
        "when",
        "ahead",
        "bounds",
        "effort",
        "correlation",
        "correlated",
        "initial_std",
        "precision",
    ):
        value = plan.get(key, getattr(own, key))  # a score from before there was such a key
        counts = key != "pull" or plan["cost"] == "content"
        if counts and value != getattr(own, key):
            said += f", {key} {value}"
    return said


def _success(record: dict[str, Any]) -> str:
    low, high = record["wilson95"]
    return f"{record['success_rate']:.1f} ({low:.1f} to {high:.1f})"


def _scored(line: Line, record: dict[str, Any]) -> str:
    settings, floors = record["config"]["score"], record["floors"]
    search = said_search(record["config"]["plan"])
    after = (record.get("checkpoint") or {}).get("step", line.steps)
    search += "" if after == line.steps else f", after {after:,} steps"
    return (
        f"| {line.name} | {record['protocol']} | {record['num_tasks']} ({record['tasks_hash']}) "
        f"| {settings['offset']} | {record['cost']} | {search} "
        f"| {_success(record)} | {floors['noop']:.1f} | {floors['random']:.1f} "
        f"| {floors['replay']:.1f} |"
    )
