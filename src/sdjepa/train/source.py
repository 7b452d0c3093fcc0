"""What a run is trained on: where that is, what it is, and whether it is the same elsewhere."""

from pathlib import Path
from typing import Any

from sdjepa.config import Config
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.runs import Run, read_json

SAID = ("env", "num_episodes", "num_rows", "image_size", "policy", "seed", "collect", "action")


def tasks_for(run: Path, config: Config, *, given: Path | None) -> Path:
    """Where a run's tasks come from: what is given, its dataset, or the pack it is kept with."""
    kept = run / "pack"
    if given is None and not Path(config.data.path).exists() and kept.exists():
        return kept
    return episodes_for(run, config, given=given)


def episodes_for(run: Path, config: Config, *, given: Path | None) -> Path:
    """Where a run's episodes are: what is given, or its dataset."""
    own = Path(config.data.path)
    if given is None and not own.exists():
        raise UserError(
            f"no dataset at {own}, where {run} had its own; say by --data DIR where it is now, or "
            f"make one: sdjepa collect {config.collect.env} --episodes 200 --out DIR"
        )
    return given or own


def describe(path: Path) -> dict[str, Any]:
    """What was trained on, which a recipe only wishes for."""
    with Episodes.open(path) as data:
        known = {name: data.info[name] for name in SAID if name in data.info}
        counted = {"num_episodes": len(data), "num_rows": data.num_rows}
        known["env_guessed"] = data.env_origin == "guessed"
        return {**known, **counted, "split_hash": data.split_hash}


def find_again(run: Run, *, given: Path | None) -> None:
    """See to it that a run that goes on has its data; `given` is where they were moved to."""
    config = run.config
    where = episodes_for(run.path, config, given=given)
    if given is None:
        return
    noted = read_json(run.path / "manifest.json").get("data") or {}
    found = describe(where)
    for key, value in noted.items():
        if found.get(key) != value:
            raise UserError(
                f"{where} is not the data {run.path} was trained on ({key} is another); name that "
                "by --data, or train a new run on this"
            )
    moved = config.data.model_copy(update={"path": str(where)})
    run.configure(config.model_copy(update={"data": moved}))
