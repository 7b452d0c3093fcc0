"""What the paper printed for the same diagnostic, and where its setting differs from ours."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from sdjepa.config import Config

_SETTING = ("diagnostic", "env", "k", "seed", "episodes", "text")


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("sdjepa.envs") / "published_compass.toml").read_text())


def published(
    diagnostic: str, env: str, *, config: Config, episodes: int, split: str
) -> list[dict[str, Any]]:
    """The printed values of `diagnostic`, same environment first, each with `differs` in words."""
    table = _table()
    rows = [row for row in table["entry"] if row["diagnostic"] == diagnostic]
    found = []
    for row in sorted(rows, key=lambda row: row["env"] != env):
        differs = []
        if row["env"] != env:
            differs.append(f"environment {row['env']}, here {env}")
        if row["k"] != config.model.k:
            differs.append(f"k = {row['k']}, here {config.model.k}")
        if row["seed"] != config.train.seed:
            differs.append(f"training seed {row['seed']}, here {config.train.seed}")
        if row["episodes"] != episodes:
            differs.append(f"{row['episodes'] or 'unstated number of'} episodes, here {episodes}")
        if split != "train":
            differs.append(f"episodes seen in training, here {split} episodes")
        if config.model.image_size != Config().model.image_size:
            differs.append(f"224 pixels, here {config.model.image_size}")
        differs.append(row["text"])
        found.append(
            {
                "source": table["common"]["source"],
                "note": table["common"]["note"],
                "setting": {key: row[key] for key in _SETTING[1:5]},
                "differs": differs,
                "values": {key: value for key, value in row.items() if key not in _SETTING},
            }
        )
    return found
