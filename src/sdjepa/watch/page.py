"""The live page: its HTML with everything inside, and the first thing its socket says."""

from typing import Any, get_args

from sdjepa.config import Plan as Settings
from sdjepa.report import published
from sdjepa.report.blocks import escape
from sdjepa.report.player import angle_map
from sdjepa.report.shell import asset, document
from sdjepa.report.words import words
from sdjepa.watch.world import REVERSED, World

HERE = "sdjepa.watch"


def page(label: str) -> str:
    """The page, the same for every viewer; the rest comes by the socket."""
    body = asset("page.html", HERE).replace("{{label}}", escape(label))
    body = body.replace("{{reversed}}", str(REVERSED))
    body = body.replace("{{words}}", words("theta", "r", "surprise", "latent", "cem", "cost"))
    return document(
        f"SD-JEPA live: {label}",
        body,
        styles=[asset("style.css"), asset("watch.css", HERE)],
        scripts=[asset("page.js"), asset("draw.js"), asset("watch.js", HERE)],
    )


def hello(world: World, *, label: str) -> dict[str, Any]:
    """What does not change while the server runs."""
    config, env = world.checkpoint.config, world.env
    costs = get_args(Settings.model_fields["cost"].annotation)
    if config.model.k < 2:
        costs = tuple(cost for cost in costs if cost not in ("angular", "progress"))
    return {
        "kind": "hello",
        "label": label,
        "env": published.title(env.name),
        "image_size": config.model.image_size,
        "frame_skip": config.model.frame_skip,
        "horizon": config.plan.horizon,
        "candidates": config.plan.candidates,
        "extent": env.extent,
        "has_needle": config.model.k >= 2,
        "colours": angle_map(),
        "tasks": [f"Episode {task.episode}, step {task.start}" for task in world.tasks],
        "solvers": get_args(Settings.model_fields["solver"].annotation),
        "costs": costs,
    }
