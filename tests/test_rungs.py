"""Each rung is the paper's row, trains from its preset, and does what its name says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sdjepa.config import Config, Plan
from sdjepa.data.episodes import ActionStats
from sdjepa.data.packing import pack
from sdjepa.data.writer import Writer
from sdjepa.model.split import Parts
from sdjepa.objectives.total import TERMS
from sdjepa.plan.agent import Planner
from sdjepa.plan.costs import candidate_cost, distance
from sdjepa.resolve import RUNGS, resolve
from sdjepa.runs import Run
from sdjepa.seeds import numpy_stream, stream
from sdjepa.train.checkpoint import Checkpoint, load_checkpoint
from sdjepa.train.loop import complete, train
from small import noise, random_batch, scene_of, small_config, small_model

# k, triplet weight, its target, prototypes, straightening, polar, first anchor, planning cost;
# SIGReg always acts on content, which is everything when k = 0.
TABLE: dict[str, tuple[Any, ...]] = {
    "A0": (0, 0.0, "progress", 0.0, 0.0, "off", 0.0, "full"),
    "A2": (2, 0.1, "progress", 0.0, 0.0, "off", 0.0, "content"),
    "A2_full": (0, 0.1, "full", 0.0, 0.0, "off", 0.0, "full"),
    "A2_split_full": (2, 0.1, "full", 0.0, 0.0, "off", 0.0, "content"),
    "A4": (2, 0.1, "progress", 0.0, 0.05, "off", 0.0, "content"),
    "A5": (2, 0.1, "progress", 0.0, 0.05, "ref", 0.0, "content"),
    "A6": (2, 0.1, "progress", 0.0, 0.05, "ref", 0.0, "angular"),
    "first_anchor": (2, 0.1, "progress", 0.0, 0.0, "off", 0.1, "content"),
    "progress_only": (2, 0.1, "progress", 0.0, 0.0, "off", 0.0, "progress"),
}


def row(config: Config) -> tuple[Any, ...]:
    o = config.objectives
    return (
        config.model.k,
        o.triplet_weight,
        o.triplet_on,
        o.prototype_weight,
        o.straighten_weight,
        config.model.polar,
        o.first_anchor_weight,
        config.plan.cost,
    )


def test_every_rung_has_its_row():
    assert set(TABLE) == set(RUNGS)


@pytest.mark.parametrize("rung", TABLE)
def test_a_rung_resolves_to_the_papers_row(rung: str):
    config = resolve(rung=rung)
    assert row(config) == TABLE[rung]
    assert config.rung == rung
    o = config.objectives
    assert (o.prediction_weight, o.sigreg_weight) == (1.0, 0.09)
    assert (o.triplet_margin, o.triplet_radius, o.triplet_sampler) == (0.2, 1, "ref")
    assert (o.rollout_weight, o.progress_head_weight) == (0.0, 0.0)
    assert (o.first_anchor_steps, o.straighten_on) == (3, "full")
    assert (config.plan.gamma, config.plan.delta) == (1.0, 0.1)
    assert config.model.split == "fixed"


@pytest.mark.parametrize("k", [2, 4, 8])
def test_k_reaches_every_rung_that_splits(k: int):
    for rung in RUNGS:
        found = resolve(rung=rung, k=k).model.k
        assert found == (0 if TABLE[rung][0] == 0 else k)


def test_a6_trains_as_a5_and_differs_only_in_its_cost():
    a5, a6 = resolve(rung="A5").model_dump(), resolve(rung="A6").model_dump()
    assert a5.pop("plan") | {"cost": "angular"} == a6.pop("plan")
    assert a5.pop("rung") != a6.pop("rung")
    assert a5 == a6


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve episodes of a bright square that its actions push around."""
    out = tmp_path_factory.mktemp("rungs") / "data"
    with Writer(out, image_size=28) as writer:
        for episode in range(12):
            rng = numpy_stream(episode, "rungs")
            actions = rng.uniform(-1, 1, (40, 2)).astype(np.float32)
            place = np.clip(10 + np.cumsum(actions, axis=0), 0, 20).astype(int)
            frames = np.zeros((40, 28, 28, 3), np.uint8)
            for at, (x, y) in enumerate(place):
                frames[at, y : y + 8, x : x + 8] = 255
            actions[-1] = np.nan
            writer.add(pack({"action": actions}, list(frames)))
        split = {"train": list(range(8)), "validation": [8, 9], "test": [10, 11]}
        return writer.finish({"env": "tworoom"}, split=split)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_trains_30_steps_from_its_preset(rung: str, data: Path, tmp_path: Path):
    settings = [
        f"data.path='{data}'",
        "train.steps=30",
        "train.log_every=1",
        "train.device=cpu",
        "train.validate_every=30",
        "train.diagnose_every=15",
    ]
    config = complete(small_config(resolve(rung=rung, settings=settings)))
    run = Run.create(tmp_path / "run", config)
    loaded = load_checkpoint(train(run))
    assert loaded.step == 30
    assert row(loaded.config) == TABLE[rung]
    records = run.metrics()
    active = {
        name
        for name, weight in config.objectives.model_dump().items()
        if name.endswith("_weight") and weight > 0
    }
    logged = {name for name in TERMS if name in records[0]}
    assert {f"{name}_weight" for name in logged} == active
    losses = [record["loss"] for record in records]
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert ("progress_std_mean" in records[-1]) == (config.model.k > 0)
    assert {"effective_rank", "validation_loss", "rollout1_content"} <= records[-1].keys()
    assert "rollout5_content" in records[-1]
    assert any(name.startswith("conflict_prediction_sigreg") for name in records[0])


def touched(rung: str, term: str) -> list[bool]:
    """Which of the 16 latent coordinates a term of a rung moves."""
    config = small_config(resolve(rung=rung))
    model = small_model(**{"k": config.model.k, "polar": config.model.polar})
    scene = scene_of(model, config.objectives, random_batch())
    (gradient,) = torch.autograd.grad(TERMS[term](scene), scene.latents)
    return (gradient.abs().sum(dim=(0, 1)) > 0).tolist()


ALL, PROGRESS, CONTENT = [True] * 16, [True] * 2 + [False] * 14, [False] * 2 + [True] * 14


@pytest.mark.parametrize(
    ("rung", "term", "coordinates"),
    [
        ("A0", "sigreg", ALL),
        ("A2", "sigreg", CONTENT),
        ("A2", "triplet", PROGRESS),
        ("A2_full", "sigreg", ALL),
        ("A2_full", "triplet", ALL),
        ("A2_split_full", "sigreg", CONTENT),
        ("A2_split_full", "triplet", ALL),
        ("A4", "straighten", ALL),
        ("A4", "triplet", PROGRESS),
        ("first_anchor", "first_anchor", PROGRESS),
    ],
)
def test_a_term_moves_the_coordinates_of_its_rung(rung: str, term: str, coordinates: list[bool]):
    assert touched(rung, term) == coordinates


def plan_of(rung: str, **changes: object) -> np.ndarray:
    """Actions a stirred model of a rung plans for one task."""
    config = small_config(resolve(rung=rung))
    settings = config.plan.model_copy(
        update={"candidates": 64, "elites": 8, "iterations": 3} | changes
    )
    model = small_model(k=config.model.k, polar=config.model.polar).eval()
    checkpoint = Checkpoint(
        model=model,
        config=config.model_copy(update={"plan": settings}),
        stats=ActionStats(mean=np.zeros(2), std=np.ones(2)),
        step=0,
        path=Path(),
    )
    frames = random_batch(1, 2)["frames"][0].numpy()
    return Planner(checkpoint).plan(frames[:1], frames[1:], streams=[stream(0, "plan")])


def test_turning_gamma_or_delta_changes_an_a6_plan():
    plan = plan_of("A6", gamma=1.0)
    assert np.array_equal(plan, plan_of("A6", gamma=1.0))
    assert not np.allclose(plan, plan_of("A6", gamma=100.0))
    assert not np.allclose(plan, plan_of("A6", delta=100.0))


def test_gamma_and_delta_are_nothing_to_the_other_rungs():
    assert np.array_equal(plan_of("A5"), plan_of("A5", gamma=100.0, delta=100.0))
    assert np.array_equal(plan_of("A5"), plan_of("A6", gamma=0.0, delta=0.0))


# --- the costs themselves


def some_parts(k: int = 4, *, tasks: int = 3, candidates: int = 5) -> tuple[Parts, Parts]:
    reached, goal = noise(tasks, candidates, 2, 16), noise(tasks, 16, seed=1)
    return (
        Parts(progress=reached[..., :k], content=reached[..., k:]),
        Parts(progress=goal[..., :k], content=goal[..., k:]),
    )


def cost(name: str, parts: tuple[Parts, Parts], **changes: object) -> Tensor:
    return distance(*parts, settings=Plan.model_validate({"cost": name} | changes))


def test_full_less_content_is_the_squared_error_of_progress():
    reached, goal = parts = some_parts()
    expected = (reached.progress - goal.progress[:, None, None]).square().sum(-1)
    torch.testing.assert_close(cost("full", parts) - cost("content", parts), expected)
    torch.testing.assert_close(cost("progress", parts), expected)


def test_pull_adds_the_progress_part_to_the_content_cost():
    parts = some_parts()
    torch.testing.assert_close(cost("content", parts, pull=1.0), cost("full", parts))
    extra = cost("content", parts, pull=50.0) - cost("content", parts)
    torch.testing.assert_close(extra, 50 * cost("progress", parts), atol=1e-3, rtol=1e-5)
    bare = some_parts(k=0)
    assert torch.equal(cost("content", bare, pull=50.0), cost("content", bare))


def test_the_angular_cost_without_weights_is_the_content_cost():
    parts = some_parts()
    off = cost("angular", parts, gamma=0.0, delta=0.0)
    assert torch.equal(off, cost("content", parts))


def test_without_progress_the_full_cost_is_the_content_cost():
    parts = some_parts(k=0)
    assert torch.equal(cost("full", parts), cost("content", parts))


def angular(parts: tuple[Parts, Parts]) -> Tensor:
    return cost("angular", parts, gamma=1.0, delta=0.0) - cost("content", parts)


def test_the_angle_is_blind_to_a_common_rotation_and_to_scale():
    reached, goal = parts = some_parts(k=2)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    turned = (
        Parts(progress=3 * reached.progress @ turn, content=reached.content),
        Parts(progress=0.5 * goal.progress @ turn, content=goal.content),
    )
    torch.testing.assert_close(angular(turned), angular(parts), atol=1e-5, rtol=1e-5)
    opposite = Parts(progress=-goal.progress, content=goal.content)
    there = Parts(
        progress=goal.progress[:, None, None].expand(3, 5, 2, 2),
        content=reached.content,
    )
    torch.testing.assert_close(angular((there, goal)), torch.zeros(3, 5, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        angular((there, opposite)), torch.full((3, 5, 2), 2.0), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", ["full", "content", "progress", "angular"])
def test_each_task_meets_its_own_goal(name: str):
    reached, goal = parts = some_parts(tasks=3, candidates=3)  # equal: a wrong axis would still fit
    together = cost(name, parts)
    for task in range(3):
        alone = cost(
            name,
            (
                Parts(reached.progress[task : task + 1], reached.content[task : task + 1]),
                Parts(goal.progress[task : task + 1], goal.content[task : task + 1]),
            ),
        )
        torch.testing.assert_close(together[task], alone[0])


def test_in_reference_scale_the_angle_hardly_counts_and_normalised_it_does():
    reached, goal = noise(1, 4000, 1, 192), noise(1, 192, seed=1)
    parts = (
        Parts(reached[..., :2], reached[..., 2:]),
        Parts(goal[..., :2], goal[..., 2:]),
    )

    def spread(scale: str) -> float:
        content = cost("angular", parts, gamma=0.0, delta=0.0, scale=scale)
        angle = cost("angular", parts, gamma=1.0, delta=0.0, scale=scale) - content
        return float(angle.std() / content.std())

    assert spread("ref") < 0.05
    assert spread("normalised") > 1


def test_cost_at_the_end_or_along_the_way():
    parts = some_parts()
    every = cost("content", parts)
    last, whole = (
        candidate_cost(*parts, settings=Plan.model_validate({"when": when}))
        for when in ("last", "sum")
    )
    assert torch.equal(last, every[..., -1])
    torch.testing.assert_close(whole, every.sum(-1))
