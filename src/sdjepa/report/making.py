"""Section three: how was it made? Recipe, departures, data, training, machine, versions, hashes."""

from collections.abc import Mapping, Sequence
from typing import Any

from sdjepa.config import Config
from sdjepa.report import published
from sdjepa.report.blocks import (
    escape,
    figure,
    grid,
    key,
    missing,
    number,
    series_variable,
    split,
    table,
)
from sdjepa.report.figures import health_terms, loss_curve, loss_terms
from sdjepa.report.read import RunFiles
from sdjepa.report.style import to_svg
from sdjepa.report.words import words


def making(runs: Sequence[RunFiles]) -> str:
    """The whole section; several runs are columns of the same tables."""
    head = (
        '<section id="made"><header><span class="number">3</span><h2>How was it made?</h2>'
        "<p>Enough to make it again, and to see where it leaves the paper.</p></header>"
    )
    parts = [
        _facts(runs[0]) if len(runs) == 1 else "",
        "<h4>Recipe</h4>",
        split(_recipe(runs), words("rung", "latent", "split")),
        _departures(runs),
        "<h4>Training</h4>",
        _training(runs),
        "<h4>Data</h4>",
        _data(runs),
        "<h4>Machine, versions and files</h4>",
        _provenance(runs),
    ]
    return head + "".join(parts) + "</section>"


def minutes(run: RunFiles) -> float | None:
    """Minutes of training, from the logged rates; None when the log has none."""
    frames_per_step = run.config.train.batch * run.config.data.window_frames
    seconds, before = 0.0, 0
    for record in run.metrics:
        if record.get("frames_per_second"):
            frames = (record["step"] - before) * frames_per_step
            seconds += frames / record["frames_per_second"]
            before = record["step"]
    return seconds / 60 if seconds else None


def parameters(run: RunFiles) -> str | None:
    """The size of the model in words."""
    return None if run.parameters is None else _size(run.parameters)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} million" if count >= 1e5 else f"{count:,}"


def _facts(run: RunFiles) -> str:
    spent = minutes(run)
    steps = run.metrics[-1]["step"] if run.metrics else None
    speed = [r["frames_per_second"] for r in run.metrics if r.get("frames_per_second")]
    facts = [
        ("trainable numbers in the model", parameters(run)),
        ("training steps", f"{steps:,}" if steps else None),
        ("minutes of training", f"{spent:.1f}" if spent is not None else None),
        (
            "frames a second while training",
            f"{sorted(speed)[len(speed) // 2]:,.0f}" if speed else None,
        ),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts if value)
    return f'<dl class="facts">{rows}</dl>' if rows else ""


_RECIPE: tuple[tuple[str, str], ...] = (
    ("rung", "Variant (rung)"),
    ("model.k", "k, numbers in the progress part"),
    ("model.latent", "numbers in the latent"),
    ("model.image_size", "picture, pixels square"),
    ("model.encoder_depth", "encoder layers"),
    ("model.predictor_depth", "predictor layers"),
    ("objectives.sigreg_weight", "weight of SIGReg"),
    ("objectives.triplet_weight", "weight of the triplet term"),
    ("train.batch", "windows per training step"),
    ("train.learning_rate", "learning rate"),
    ("train.seed", "training seed"),
    ("data.frame_skip", "environment steps per model step"),
    ("plan.cost", "planning cost"),
    ("plan.candidates", "CEM candidates"),
    ("plan.iterations", "CEM rounds"),
    ("plan.horizon", "planned model steps"),
)  # fmt: skip


def _recipe(runs: Sequence[RunFiles]) -> str:
    paper, rows, marked = Config(), [], []
    for dotted, meaning in _RECIPE:
        values = [number(setting_of(run.config, dotted)) for run in runs]
        reference = number(setting_of(paper, dotted))
        if set(values) != {reference}:
            marked.append(len(rows))
        rows.append([escape(meaning), reference, *values])
    sizes = [parameters(run) for run in runs]
    if any(sizes):
        rows.append(
            ["trainable numbers", _size(published.parameters()), *(number(size) for size in sizes)]
        )
    return table(["", "Paper", *_names(runs)], rows, numeric=range(1, 2 + len(runs)), marked=marked)


def _names(runs: Sequence[RunFiles]) -> list[str]:
    return [run.label if len(runs) > 1 else "This run" for run in runs]


def departures(config: Config) -> list[tuple[str, Any, Any]]:
    """Settings that shape a result and differ from the defaults: key, paper's value, this run's."""
    ours, paper = config.model_dump(), Config().model_dump()
    bookkeeping = {
        "collect.env", "collect.workers", "data.path", "train.device", "train.log_every",
        "train.validate_every", "train.checkpoint_every", "train.keep_checkpoints",
        "model.action_dim", "model.frame_skip",
    }  # fmt: skip
    return [
        (f"{section}.{leaf}", paper[section][leaf], value)
        for section, leaves in ours.items()
        if isinstance(leaves, Mapping)
        for leaf, value in leaves.items()
        if value != paper[section][leaf] and f"{section}.{leaf}" not in bookkeeping
    ]


def _departures(runs: Sequence[RunFiles]) -> str:
    found = [{name: value for name, _, value in departures(run.config)} for run in runs]
    names = list(dict.fromkeys(name for one in found for name in one))
    if not names:
        return '<p class="note">Every setting is the paper&rsquo;s.</p>'
    rows = [
        [
            f"<code>{name}</code>",
            number(setting_of(Config(), name)),
            *(number(setting_of(run.config, name)) for run in runs),
        ]
        for name in names
    ]
    body = table(["Setting", "Paper", *_names(runs)], rows, numeric=range(1, 2 + len(runs)))
    return (
        f"<details><summary>All {len(names)} settings that depart from the paper&rsquo;s defaults"
        f"</summary>{body}</details>"
    )


def setting_of(config: Config, dotted: str) -> Any:
    """The value of a dotted key, such as `model.k`."""
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def _training(runs: Sequence[RunFiles]) -> str:
    logged = [(run.label, run.metrics) for run in runs if run.metrics]
    silent = "".join(
        missing(f"{run.label} has no training log.", f"sdjepa train RECIPE --out {run.label}")
        for run in runs
        if not run.metrics
    )
    if not logged:
        return silent
    terms = list(dict.fromkeys(term for _, metrics in logged for term in loss_terms(metrics)))
    health = list(dict.fromkeys(term for _, metrics in logged for term in health_terms(metrics)))
    marks = [
        ("line", series_variable(i), label if len(logged) > 1 else "training")
        for i, (label, _) in enumerate(logged)
    ]
    held_out = any(name.startswith("validation_") for _, m in logged for r in m for name in r)
    if held_out:
        marks.append(
            ("ring", "var(--muted)" if len(logged) > 1 else series_variable(0), "held-out")
        )
    known = [term for term in ("prediction", "sigreg", "triplet") if term in terms]
    body = key(marks) + split(_curves(logged, terms), words(*known, "held_out"))
    if health:
        body += (
            f"<details><summary>Health of the latent while training, {len(health)} curves</summary>"
            f"{_curves(logged, health)}{words('rank', 'spread', 'rollout')}</details>"
        )
    return body + silent


def _curves(logged: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], terms: Sequence[str]) -> str:
    return grid(
        figure(
            to_svg(
                loss_curve(logged, term=term),
                alt=f"{term.replace('_', ' ')} during training",
                name=f"loss-{term}",
            )
        )
        for term in terms
    )


def _data(runs: Sequence[RunFiles]) -> str:
    rows = []
    for run in runs:
        data, config = run.data, run.config.collect
        collect = {**config.model_dump(), **(data.get("collect") or {})}
        held = 100 * (collect["validation_share"] + collect["test_share"])
        rows.append(
            {
                "environment": published.title(data.get("env", config.env)),
                "episodes": data.get("num_episodes", f"{config.episodes:,} (the recipe's)"),
                "frames": data.get("num_rows"),
                "steps per episode": collect["steps"],
                "policy": f"{collect['policy']}, noise {collect['noise']:g}",
                "picture": f"{data.get('image_size', config.size)} pixels",
                "held out": f"{held:g} % of episodes",
                "seed": collect["seed"],
            }
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[name.replace("_", " "), *(number(row.get(name)) for row in rows)] for name in names]
    return table(["", *_names(runs)], body, numeric=range(1, 1 + len(runs)))


def _provenance(runs: Sequence[RunFiles]) -> str:
    rows: dict[str, list[str]] = {}

    def put(name: str, index: int, value: object) -> None:
        rows.setdefault(name, ["\u2013"] * len(runs))[index] = number(value)

    for i, run in enumerate(runs):
        put("machine", i, run.manifest.get("machine"))
        put("made", i, run.manifest.get("made"))
        code = run.manifest.get("code") or {}
        if code.get("commit"):
            put("code", i, code["commit"][:12] + (" with changes" if code.get("changed") else ""))
        for package, version in (run.manifest.get("versions") or {}).items():
            put(package, i, version)
        for score in run.scores:
            if score.record.get("protocol_hash"):
                put(f"tasks of {score.name}", i, str(score.record["protocol_hash"])[:12])
        for file, digest in run.digests.items():
            put(file, i, digest)
    body = table(
        ["", *_names(runs)],
        [[escape(name), *values] for name, values in rows.items()],
        numeric=range(1, 1 + len(runs)),
    )
    note = (
        '<p class="note">Beside a file stands the beginning of its SHA-256: two pages that '
        "show the "
        "same digits were made from the same bytes.</p>"
    )
    return f"<details><summary>Show all {len(rows)} entries</summary>{body}{note}</details>"
