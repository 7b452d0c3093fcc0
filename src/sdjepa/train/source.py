"""What a run is trained on: said in its manifest, and known again where it was moved to."""

from pathlib import Path
from typing import Any

from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import episodes_for
from sdjepa.errors import UserError
from sdjepa.runs import Run, read_json

SAID = ("env", "num_episodes", "num_rows", "image_size", "policy", "seed", "collect")


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
