"""The numbers of a data card in, the page people read out."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from sdjepa.config import Collect
from sdjepa.data.again import command
from sdjepa.envs.base import NAMES, env_class
from sdjepa.statistics import wilson95


def markdown(record: dict[str, Any], *, picture: str, shown: str) -> str:
    """The page; `picture` is the contact sheet's name, and `shown` what it shows."""
    action, pack, env = record["action"], record["pack"], record["env"]
    quantiles = ", ".join(str(record["episode_rows"][share]) for share in ("0.05", "0.5", "0.95"))
    of_tasks = ", of these tasks" if pack else ""
    sides = ", ".join(map(str, record["split"].values()))
    rows = [
        *([("Environment", f"{env}, {said}")] if (said := record["env_said"]) else []),
        *_origin(record),
        ("Tasks" if pack else "Episodes", f"{record['num_episodes']:,}"),
        _frames(record),
        (f"Rows of {'a task' if pack else 'an episode'} (5, 50, 95 %)", quantiles),
        *([] if pack else [("Episodes for train, validation, test", sides)]),
        *_made_by(record),
        *([] if record["seed"] is None else [("Seed", str(record["seed"]))]),
        *_policy(record),
        (f"Action mean{of_tasks}", _numbers(action["mean"])),
        (f"Action standard deviation{of_tasks}", _numbers(action["std"])),
        *_normaliser(record),
        ("Correlation with the next action", _numbers(action["lag1_correlation"])),
        *_tasks(record.get("tasks", {})),
    ]
    if shadow := (record["collect"] or {}).get("shadow"):
        rows.append(("Shadow map", f"{shadow} texels a side, not the benchmark's"))
    lines = [
        "# " + ("Evaluation pack" if pack else "Data card") + (f": {env}" if env in NAMES else ""),
        "",
        f"![{shown}]({quote(picture)})",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "## Columns",
        "",
        "| column | type | shape of a row | SHA-256 |",
        "|---|---|---|---|",
    ]
    for name, column in record["columns"].items():
        shape = " x ".join(map(str, column["shape"])) or "scalar"
        checksum = column.get("sha256", "not asked for")[:16]
        lines.append(f"| {name} | {column['dtype']} | {shape} | {checksum} |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three digits; what simulators leave of nothing is nothing."""
    return f"{0 if abs(value) < 1e-6 else value:.3g}"


def _numbers(values: Any) -> str:
    return ", ".join(_number(float(value)) for value in values)


def _share(share: float, count: int) -> str:
    low, high = wilson95(share * count, count)
    return f"{100 * share:.0f} % ({low:.0f} to {high:.0f})"


def _frames(record: dict[str, Any]) -> tuple[str, str]:
    size, count = record["image_size"], record["num_frames"]
    if not record["pack"]:
        return "Frames", f"{count:,} of {size} px"
    ends = record["num_episodes"] * (2 if record["pack"]["offset"] else 1)
    black = "; black ones stand between" if count > ends else ""
    return "Frames", f"{ends:,} of {size} px, of starts and goals{black}"


def _origin(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What it was made from, where it was not collected."""
    rows = []
    if pack := record["pack"]:
        of = pack["of"]
        how = f"goals {pack['offset']} steps ahead, tasks chosen as in {pack['protocol']}"
        rows.append(("A pack of", f"{of['name']} ({of['rows']:,} rows); {how}"))
    if converted := record["converted"]:
        native = (record["collect"] or {}).get("size")
        size = record["image_size"]
        if native and native != size:
            frames = f"frames of {native} px reduced to {size}"
        elif converted.get("size"):
            frames = f"frames made to be {size} px"
        else:
            frames = "frames as they were"
        camera = converted.get("camera")
        seen = f", camera {camera}" if camera else ""
        kind = {"lerobot": " (LeRobot)"}.get(converted.get("kind"), "")
        if converted.get("ours") is False and not kind:
            kind = " (another program's)"
        rows.append(("Converted from", f"{converted['from']}{kind}{seen}; {frames}"))
    return rows


def _made_by(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The command that makes it again, of what was collected."""
    if (record["collect"] or {}).get("env") not in NAMES:
        return []
    settings = Collect.model_validate(record["collect"])
    if settings.policy == "demos":  # where its file lay says nothing elsewhere
        settings = settings.model_copy(update={"demos": "FILE"})
    again = f"`{command(settings, Path('DIR'))}`"
    return [("Made by", f"{again}, then converted" if record["converted"] else again)]


def _policy(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Who acted, as far as that is known."""
    policy, env = record["policy"] or {}, record["env"]
    if "name" not in policy:
        return []
    said = policy["name"]
    if "demos_sha256" in policy:
        given = Path((record["collect"] or {}).get("demos") or "").name
        said += (
            f" ({given + ', ' if given else ''}SHA-256 of its arrays {policy['demos_sha256'][:16]})"
        )
    noiseless = env_class(env).noiseless if env in NAMES else ()
    if "noise" in policy and policy["name"] not in noiseless:
        said += f", noise {policy['noise']}"
    rows = [("Policy", said)]
    wants = policy["name"] != "random"
    if wants and {"success_share", "successes_per_episode"} <= set(policy):
        share, often = policy["success_share"], policy["successes_per_episode"]
        goals = f"{100 * share:.0f} % ({often:.2f} goals an episode)"
        rows.append(("Episodes in which the policy reached a goal", goals))
    return rows


def _normaliser(record: dict[str, Any]) -> list[tuple[str, str]]:
    """By what a pack has actions normalised, which is the dataset's and not its own."""
    if not record["pack"]:
        return []
    mean, std = (_numbers(record["normaliser"][name]) for name in ("mean", "std"))
    return [("Actions of the whole dataset, which normalise: mean; deviation", f"{mean}; {std}")]


def _tasks(tasks: dict[str, Any]) -> list[tuple[str, str]]:
    """How hard its tasks are."""
    if not tasks:
        return []
    ahead = f"goal {tasks['offset']} steps ahead"
    if not tasks["found"]:
        return [("Tasks", f"none: no episode goes on for {tasks['offset']} steps")]
    distances = _numbers(tasks["start_distance_quantiles"][s] for s in ("0.05", "0.5", "0.95"))
    at_start, idle, replayed = (
        _share(tasks[f"solved_{how}_share"], tasks["found"])
        for how in ("at_start", "by_doing_nothing", "by_replaying")
    )
    rows = [
        (
            f"Tasks looked at, of {tasks['candidates']:,} in it, {ahead} (95 % intervals)",
            str(tasks["found"]),
        ),
        ("... solved at the start", at_start),
        (f"... solved by doing nothing for {tasks['budget']} steps", idle),
        ("... solved by the recorded actions", replayed),
        ("... distance to the goal (5, 50, 95 %)", f"{distances} {tasks['start_distance_is']}"),
    ]
    if tasks["starts_left_out"]:
        rows.append(("... starts that no simulator can take", f"{tasks['starts_left_out']:,}"))
    return rows
