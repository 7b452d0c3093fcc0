"""What the episode player shows: held-out, edited and planned episodes as one kind of record.

Every record has a path; theta, radius, frames, goal and traces where a result file holds them. The
page carries them as JSON; player.js draws them and moves everything with one slider.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from sdjepa.report.blocks import escape, spoken
from sdjepa.report.course_figures import bounds, chosen
from sdjepa.report.read import RunFiles, Score
from sdjepa.report.style import THETA, cyclic

SHOWN = 8  # held-out episodes in the player of one run
COLOURS = 72
EDITS = {
    "splice": "cut to another episode",
    "teleport": "one foreign frame",
    "reverse": "ten frames backwards",
}
Item = dict[str, Any]


def player(run: RunFiles) -> str:
    """The player of one run, or nothing when no file holds an episode."""
    items = [*_held_out(run), *_edited(run), *_planned(run)]
    return markup(items) if items else ""


def angle_map() -> list[str]:
    """The cyclic map as hexadecimal colours, from angle 0 once round."""
    return [to_hex(colour) for colour in cyclic(COLOURS)(np.arange(COLOURS))]


def markup(items: Sequence[Item]) -> str:
    """A player of these episodes, to stand on a page with draw.js and player.js."""
    data = json.dumps({"items": items, "colours": angle_map()}, separators=(",", ":"))
    options = "".join(
        f'<optgroup label="{escape(group)}">'
        + "".join(
            f'<option value="{i}">{escape(item["label"])}</option>'
            for i, item in enumerate(items)
            if item["group"] == group
        )
        + "</optgroup>"
        for group in dict.fromkeys(item["group"] for item in items)
    )
    # "</" would end the script element early.
    return (
        '<div class="player"><div class="controls"><label>Episode <select>'
        f'{options}</select></label><button type="button" class="play">Play</button>'
        '<input type="range" min="0" max="1" value="0" aria-label="Frame of the episode">'
        '<output aria-live="off"></output></div>'
        '<div class="stage"><div class="tiles"></div><div class="traces"></div></div>'
        '<p class="note"></p><noscript><p class="missing">The player needs JavaScript; the figures '
        "below do not.</p></noscript>"
        f'<script type="application/json">{data.replace("</", "<" + chr(92) + "/")}</script></div>'
    )


def _course(run: RunFiles) -> list[Mapping[str, Any]]:
    found = next((item for item in run.compass if item.name == "course"), None)
    return list(found.record["results"]["episodes"]) if found else []


def _results(run: RunFiles, name: str) -> Mapping[str, Any]:
    found = next((item for item in run.compass if item.name == name), None)
    return found.record["results"] if found else {}


def _extent(run: RunFiles) -> Sequence[float] | None:
    """What the environment's picture covers, where a result file says so."""
    extent = _results(run, "film").get("extent")
    if extent:
        return extent
    for score in run.scores:
        for rollout in score.rollouts:
            if rollout.get("extent"):
                return rollout["extent"]
    return None


def _held_out(run: RunFiles) -> list[Item]:
    episodes = _course(run)
    if not episodes:
        return []
    surprises = {found["episode"]: found for found in _results(run, "events").get("examples", [])}
    film = _results(run, "film")
    frames = {found["episode"]: found["frames"] for found in film.get("episodes", [])}
    known = [episode for episode in episodes if episode["episode"] in (frames or surprises)]
    extent = _extent(run)
    return [
        _episode(
            episode,
            view=extent or bounds(episodes),
            overlay=extent is not None,
            frames=frames.get(episode["episode"], ()),
            every=film.get("every", 1),
            surprise=surprises.get(episode["episode"]),
            changes=_change_points(run, episode["episode"]),
            frame_skip=run.config.data.frame_skip,
        )
        for episode in chosen(known or episodes, SHOWN)
    ]


def _change_points(run: RunFiles, episode: int) -> list[int]:
    """Detected change points, in model steps."""
    kinds = _results(run, "changes").get("kinds", {})
    found = [
        example["untold"]
        for kind in kinds.values()
        for example in kind.get("examples", [])
        if example["episode"] == episode
    ]
    return sorted({step for steps in found for step in steps})


def _episode(
    episode: Mapping[str, Any],
    *,
    view: Sequence[float],
    overlay: bool,
    frames: Sequence[str],
    every: int,
    surprise: Mapping[str, Any] | None,
    changes: Sequence[int],
    frame_skip: int,
) -> Item:
    traces = _angle_traces(episode["theta"], episode["radius"])
    traces += [series(spoken(name), values) for name, values in episode["measures"].items()]
    if surprise is not None:
        names = {"angle_error": f"surprise of {THETA}", "latent_error": "surprise of the latent"}
        traces += [
            series(names[name], values, first=surprise["first_step"] * frame_skip, every=frame_skip)
            for name, values in surprise["signals"].items()
            if name in names
        ]
    marks = [
        {"row": row, "kind": "event", "label": spoken(name)}
        for name, rows in episode["events"].items()
        for row in rows
    ]
    marks += [
        {"row": step * frame_skip, "kind": "change", "label": "change point"} for step in changes
    ]
    return {
        "group": "Held-out episodes",
        "label": f"Episode {episode['episode']}",
        "path": rounded(episode["path"], 1),
        "view": list(view),
        "theta": rounded(episode["theta"], 3),
        "radius": rounded(episode["radius"], 3),
        "traces": traces,
        "marks": marks,
        "overlay": overlay,
        "frames": list(frames),
        "every": every,
        "note": "Dashed: true events. Triangles: change points found without being told.",
    }


def _edited(run: RunFiles) -> list[Item]:
    """The compass's chosen pair under each edit: the jump is the moment, theta the meaning."""
    pair = _results(run, "surprise").get("chosen_pair")
    episodes = {episode["episode"]: episode for episode in _course(run)}
    if not pair or not {pair["own"], pair["donor"]} <= episodes.keys():
        return []
    own, donor = episodes[pair["own"]], episodes[pair["donor"]]
    items = []
    for mode, words in EDITS.items():
        if mode not in pair["modes"]:
            continue
        found = pair["modes"][mode]
        places = list(zip(found["source"], found["row"], strict=True))
        radius = [(donor if which else own)["radius"][row] for which, row in places]
        items.append(
            {
                "group": "Edited episodes: moment and meaning",
                "label": f"Episode {pair['own']}, {words}",
                "path": rounded([(donor if w else own)["path"][row] for w, row in places], 1),
                "view": list(_extent(run) or bounds(list(episodes.values()))),
                "theta": rounded(found["theta"], 3),
                "radius": rounded(radius, 3),
                "traces": [
                    series(f"{THETA}, the meaning", found["theta"]),
                    series(f"jump of {THETA}, the moment", found["jump"], first=1),
                    series("r", radius),
                ],
                "marks": [{"row": cut, "kind": "cut", "label": "cut"} for cut in found["cuts"]],
                "frames": [],
                "every": 1,
                "note": "At the dashed line the film is edited. The encoder sees single frames, so "
                "any readout would follow; the compass tests whether the jump tells more.",
            }
        )
    return items


def _planned(run: RunFiles) -> list[Item]:
    score: Score | None = run.headline
    items = []
    for rollout in score.rollouts if score else ():
        path = np.asarray(rollout["path"], float)
        goal = np.asarray(rollout["goal"], float)
        away = np.linalg.norm(path - goal[:2], axis=1)
        frames = list(rollout.get("frames") or ())
        every = rollout.get("every") or max(1, round((len(path) - 1) / max(1, len(frames) - 1)))
        theta, radius = _held(rollout, "theta", len(path)), _held(rollout, "radius", len(path))
        needle = [] if theta is None else _angle_traces(np.unwrap(theta).tolist(), radius or [])
        ending = "reached" if rollout["success"] else "missed"
        items.append(
            {
                "group": "Planned episodes",
                "label": f"Task {rollout['task']}, goal {ending}",
                "path": rounded(path, 1),
                "view": list(rollout.get("extent") or bounds([{"path": [*path, goal[:2]]}])),
                "overlay": bool(rollout.get("extent")),
                "theta": theta,
                "radius": radius,
                "traces": [*needle, series("way to the goal", away)],
                "marks": [],
                "frames": frames,
                "every": every,
                "goal": rounded(goal[:2], 1),
                "goal_frame": rollout.get("goal_frame"),
                "note": "The planner sees only the frame and the goal picture. A frame is kept, "
                f"and the needle read, every {every} steps.",
            }
        )
    return items


def _held(rollout: Mapping[str, Any], name: str, rows: int) -> list[float] | None:
    """A reading per row: the last one taken; None where a score recorded none."""
    if name not in rollout:
        return None
    kept = np.asarray(rollout[name], float)
    last = np.minimum(np.arange(rows) // rollout["every"], len(kept) - 1)
    return rounded(kept[last], 3)


def _angle_traces(theta: Sequence[float], radius: Sequence[float]) -> list[Item]:
    return [series(f"{THETA}, radians", theta), series("r, length", radius)]


def series(name: str, values: Any, *, first: int = 0, every: int = 1) -> Item:
    """A trace; value i belongs to row first + i * every."""
    return {"name": name, "values": rounded(values, 4), "first": first, "every": every}


def rounded(values: Any, digits: int) -> Any:
    """Plain lists of short numbers; what is not finite becomes 0."""
    found = np.round(np.asarray(values, float), digits)
    return np.where(np.isfinite(found), found, 0.0).tolist()
