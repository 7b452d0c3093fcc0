"""Panels of what the latent looks like and what it follows."""

from collections.abc import Iterator

import numpy as np

from sdjepa.report import course_figures, readout_figures, shape_figures
from sdjepa.report.blocks import escape, spoken
from sdjepa.report.panel import Panel, Record
from sdjepa.report.style import RHO, THETA


def course(record: Record) -> Iterator[Panel]:
    episodes = record["results"]["episodes"]
    yield Panel(
        "plane",
        f"The progress plane of {len(episodes)} held-out episodes, drawn as a dial",
        "<b>The dial.</b> Each line is one held-out episode in the plane of the first two progress "
        "numbers; square: start, star: end. The rim gives every angle its colour.",
        lambda: course_figures.plane(episodes),
    )
    yield Panel(
        "theta",
        f"{THETA} over time for every episode",
        f"<b>{THETA} over time,</b> counted from each episode&rsquo;s start. Three episodes "
        "stand out "
        "only to be followed by eye.",
        lambda: course_figures.over_time(episodes, name="theta"),
    )
    yield Panel(
        "radius",
        "r over time for every episode",
        "<b>r over time.</b> Near 0 the needle has no direction and the angle means nothing.",
        lambda: course_figures.over_time(episodes, name="radius"),
    )
    view = record.get("extent") or course_figures.bounds(episodes)
    for i, episode in enumerate(course_figures.chosen(episodes)):
        yield Panel(
            f"path-{episode['episode']}",
            f"Path of episode {episode['episode']} coloured by {THETA}",
            f"Episode {episode['episode']}" + (f", path coloured by {THETA}" if i == 0 else ""),
            lambda episode=episode: course_figures.path(episode, view=view),
            row=1,
            size="small",
        )


def correlation(record: Record) -> Iterator[Panel]:
    yield Panel(
        "strength",
        f"Mean absolute rank correlation of {THETA} with each measure, against chance",
        f"<b>How closely {THETA} follows each quantity.</b> Dot: mean |{RHO}| over episodes "
        "with its "
        "95 % interval. Grey bars, top to bottom, reach to where 95 % of each null ends: "
        + "; ".join(readout_figures.NULL_NAMES.values())
        + ". A finding lies to the right of all of them.",
        lambda: readout_figures.strength(record),
    )
    yield Panel(
        "episodes",
        f"Signed rank correlation of {THETA} in every episode",
        "<b>Every episode by itself.</b> Dots on both sides of zero mean that the needle "
        "turns one way "
        "in some episodes and the other way in others.",
        lambda: readout_figures.per_episode(record),
    )


def probe(record: Record) -> Iterator[Panel]:
    if not record["results"].get("per_episode"):
        return
    target = escape(spoken(record["results"]["target"]))
    yield Panel(
        "means",
        "Mean explained variance per feature, two ways of holding out",
        f"<b>How much of {target} each feature explains.</b> Ring: one step held out, as "
        "published, "
        "which any smooth curve passes. Dot: whole blocks held out with a gap.",
        lambda: readout_figures.probe_means(record),
    )
    yield Panel(
        "episodes",
        "Explained variance of every episode",
        "<b>Every episode by itself,</b> blocks held out; the stroke is the median. The "
        "claim needs "
        "the first row to lie right of the others.",
        lambda: readout_figures.probe_episodes(record),
    )


def order(record: Record) -> Iterator[Panel]:
    gaps = record["results"]["gaps"]
    captions = {
        "theta": "<b>Right order, by the angle.</b> Blue: share of pairs put in the right order, "
        "with its 95 % interval; grey: angles of random planes, mean to 95th percentile; "
        "dotted: a coin.",
        "linear": "<b>Right order, by a line</b> fitted on the other episodes. Grey: equally many "
        "random directions of the latent.",
    }
    for what, caption in captions.items():
        yield Panel(
            what,
            f"Order accuracy of {what} against the gap between two frames",
            caption,
            lambda what=what: readout_figures.order_by_gap(gaps, what=what),
        )


def place(record: Record) -> Iterator[Panel]:
    found, extent = record["results"], record.get("extent")
    down = bool(extent) and extent[2] < extent[3]
    visited = found["visited"]
    (left, low), (right, high) = visited["low"], visited["high"]
    drawn = found.get("drawn")
    if drawn:
        edges = (drawn["x"][0], drawn["x"][-1], drawn["y"][0], drawn["y"][-1])
        radius = np.asarray(drawn["plane_radius"], float)
        yield Panel(
            "drawn",
            f"{THETA} over a grid of rendered states",
            f"<b>The compass as a map.</b> The environment was drawn with its agent at every "
            "place of "
            f"a grid; colour is {THETA}, faint where the needle is short.",
            lambda: shape_figures.angle_map(
                np.asarray(drawn["theta"], float),
                strength=radius / (np.nanmax(radius) or 1.0),
                edges=edges,
                down=down,
            ),
        )
    yield Panel(
        "visited",
        f"Mean {THETA} of held-out episodes at every place they visited",
        f"<b>The same from held-out episodes.</b> Mean {THETA} per cell, faint where episodes "
        "disagree; empty where none went.",
        lambda: shape_figures.angle_map(
            np.asarray(visited["theta"], float),
            strength=np.nan_to_num(np.asarray(visited["coherence"], float)),
            edges=(left, right, low, high),
            down=down,
        ),
    )


def geometry(record: Record) -> Iterator[Panel]:
    found = record["results"]["cosine"]
    for name, title, caption in (
        (
            "plain",
            "cosine between episodes",
            "<b>As published.</b> Vermilion: progress, blue: content. A common offset alone makes "
            "vectors look alike.",
        ),
        (
            "centred",
            "cosine, common mean removed",
            "<b>With the control.</b> What is left when the average latent is taken away is what "
            "episodes truly share.",
        ),
    ):
        yield Panel(
            name,
            f"{title}, progress and content, at three moments",
            caption,
            lambda name=name, title=title: shape_figures.cosines(
                found[name], rows=found["rows"], title=title
            ),
        )


def sight(record: Record) -> Iterator[Panel]:
    found = record["results"]
    if "content" not in found:
        return
    beside = (record.get("against") or {}).get("results")
    yield Panel(
        "reach",
        "Squared latent distance of two frames against their true distance, per part",
        "<b>Where a cost goes blind:</b> right of its dot a part holds all frames for "
        "about equally far away, so a planner that follows it cannot tell whether it comes "
        "nearer; shaded: 80 % of pairs" + ("; dashed: content of the baseline." if beside else "."),
        lambda: shape_figures.sight(found, beside=beside),
    )


def notice(record: Record) -> Iterator[Panel]:
    found = record["results"]
    if "things" not in found:
        return
    yield Panel(
        "things",
        "How far the latent moves when one thing alone is where it is in another episode",
        "<b>What a planner can go by:</b> a thing that moves the picture but hardly the latent is "
        "one the model does not see, and no plan will bring it anywhere on purpose.",
        lambda: shape_figures.noticed(found),
    )


def embedding(record: Record) -> Iterator[Panel]:
    found = record["results"]
    lengths = [len(points["rows"]) for points in found["points"]]
    shown = [
        ("plane", found["plane"], "<b>Progress,</b> its first two numbers as they are."),
        ("tsne-progress", found["tsne"]["progress"]["2d"], "<b>Progress,</b> flattened by t-SNE."),
        ("tsne-content", found["tsne"]["content"]["2d"], "<b>Content,</b> flattened by t-SNE."),
        ("pca", found["pca"]["coordinates"], "<b>All of it,</b> two main directions."),
    ]
    for part in ("progress", "content"):
        solid = np.asarray(found["tsne"][part]["3d"], float)
        if solid.size:
            words = f"<b>{part.capitalize()},</b> t-SNE in 3-d, seen from the paper's side."
            shown.append((f"tsne3-{part}", shape_figures.seen_from(solid), words))
    for name, points, caption in shown:
        yield Panel(
            name,
            f"{name.replace('-', ' ')} of {len(lengths)} episodes",
            caption + " One colour per episode; square: start, star: end." * (name == "plane"),
            lambda points=points: shape_figures.cloud(np.asarray(points, float), lengths),
            size="small",
        )
