"""Every term's closed forms and invariances, who receives its gradient, and one seed, one run."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from sdjepa.config import Model, Objectives, Train
from sdjepa.model.world_model import WorldModel
from sdjepa.objectives import progress, total
from sdjepa.objectives.progress import (
    draw_paper,
    draw_ref,
    first_anchor,
    margin_triplet,
    order,
    prototypes,
    triplet_paper,
    triplet_ref,
)
from sdjepa.objectives.scene import Extent
from sdjepa.objectives.sigreg import directions, quadrature, sigreg
from sdjepa.objectives.total import TERMS, losses, weights
from sdjepa.objectives.trajectory import bend, prediction_error
from sdjepa.seeds import stream
from sdjepa.train.monitor import effective_rank, gradient_cosines, latent_health
from sdjepa.train.schedule import learning_rate, make_optimizer
from small import noise, random_batch, scene_of, small_model

SHAPES = {"margin": 0.2, "radius": 1}
PAPER = {"margin": 0.2, "radius": 1, "other_share": 0.5}


def only(name: str, **changes: object) -> Objectives:
    """Settings in which `name` is the one active term."""
    off = {f"{term}_weight": 0.0 for term in TERMS}
    return Objectives.model_validate(off | {f"{name}_weight": 1.0} | changes)


def gradient(loss: Tensor, on: Tensor) -> Tensor:
    found = torch.autograd.grad(loss, on, allow_unused=True, retain_graph=True)[0]
    return torch.zeros_like(on) if found is None else found


# --- SIGReg


def test_quadrature_is_the_published_one():
    at, weight = quadrature(17)
    assert_close(at, torch.arange(17) * 0.1875)
    assert weight.sum().item() == pytest.approx(2.49967, abs=1e-5)
    expected = (weight * (1 - torch.exp(-at.square()))).sum()
    assert expected.item() == pytest.approx(1.0525, abs=5e-5)


@pytest.mark.parametrize("batch", [8, 64, 256])
def test_sigreg_of_gaussian_latents_is_1_0525_at_any_batch(batch: int):
    repeats = 4096 // batch
    values = [
        sigreg(noise(batch, 4, 12, seed=s), directions(12, 64, stream(s, "along")))
        for s in range(repeats)
    ]
    assert torch.stack(values).mean().item() == pytest.approx(1.0525, rel=0.06)


def test_sigreg_of_zeros_at_batch_128_is_51_46():
    along = directions(190, 1024, stream(0, "along"))
    assert sigreg(torch.zeros(128, 4, 190), along).item() == pytest.approx(51.46, abs=0.005)


def test_directions_are_unit_vectors():
    along = directions(30, 100, stream(0, "along"))
    assert_close(along.norm(dim=0), torch.ones(100))


def test_sigreg_ignores_the_order_of_time_and_of_windows_within_a_step():
    latents, along = noise(16, 4, 10), directions(10, 32, stream(0, "along"))
    value = sigreg(latents, along)
    assert_close(sigreg(latents[:, [2, 0, 3, 1]], along), value)
    shuffled = latents.clone()
    shuffled[:, 1] = latents[torch.randperm(16, generator=stream(1, "order")), 1]
    assert_close(sigreg(shuffled, along), value)


def test_sigreg_is_taken_per_step_and_never_pools_time():
    """Two steps that are each far from Gaussian but complete each other are not excused."""
    half = noise(256, 5).abs()
    latents = torch.stack([half, -half], dim=1)
    along = directions(5, 16, stream(0, "along"))
    apart = (sigreg(latents[:, :1], along) + sigreg(latents[:, 1:], along)) / 2
    assert_close(sigreg(latents, along), apart)
    pooled = sigreg(latents.flatten(0, 1)[:, None], along)
    assert apart > 2 * pooled


def test_sigreg_runs_in_float32_inside_autocast():
    latents, along = noise(16, 2, 10), directions(10, 32, stream(0, "along"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = sigreg(latents, along)
    assert torch.equal(inside, sigreg(latents, along))


# --- Proposition 1, on the model itself


@pytest.mark.parametrize("sampler", ["ref", "paper"])
@pytest.mark.parametrize("split", ["fixed", "learned"])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_content_and_progress_terms_have_disjoint_gradients(k: int, split: str, sampler: str):
    model = small_model(k=k, split=split)  # stirred: a learned split is far from the fixed one
    settings = Objectives.model_validate({"triplet_sampler": sampler})
    scene = scene_of(model, settings, random_batch())
    on_content = gradient(TERMS["sigreg"](scene), scene.latents)
    on_progress = gradient(TERMS["triplet"](scene), scene.latents)
    # Gradients are vectors of latent space: the split reads them in its own coordinates.
    content, triplet = model.split(on_content), model.split(on_progress)
    exact = {"fixed": 0.0, "learned": 1e-6}[split]  # a rotation there and back rounds
    assert content.progress.abs().max() <= exact
    assert triplet.content.abs().max() <= exact
    assert content.content.abs().max() > 1e-3
    assert triplet.progress.abs().max() > 1e-3


@pytest.mark.parametrize("k", [2, 4, 8])
def test_disjoint_gradients_are_exactly_zero_in_the_learned_splits_own_coordinates(k: int):
    model = small_model(k=k, split="learned")
    scene = scene_of(model, Objectives(), random_batch())
    assert gradient(TERMS["sigreg"](scene), scene.parts.progress).abs().max() == 0
    assert gradient(TERMS["triplet"](scene), scene.parts.content).abs().max() == 0


@pytest.mark.parametrize("k", [2, 4, 8])
def test_disjoint_gradients_at_the_papers_size(k: int):
    config = Model(action_dim=2, frame_skip=5, k=k)
    model = WorldModel(config)
    scene = scene_of(model, Objectives(), random_batch(4, 4, size=224))
    assert gradient(TERMS["sigreg"](scene), scene.latents)[..., :k].abs().max() == 0
    assert gradient(TERMS["triplet"](scene), scene.latents)[..., k:].abs().max() == 0


def test_without_a_split_sigreg_shapes_every_coordinate():
    scene = scene_of(small_model(k=0), only("sigreg"), random_batch())
    assert (gradient(TERMS["sigreg"](scene), scene.latents) != 0).all()


# --- triplets


def test_equal_latents_cost_the_margin_and_antipodal_negatives_nothing():
    same = torch.ones(5, 3)
    assert margin_triplet(same, same, same, margin=0.2).item() == pytest.approx(0.2)
    assert margin_triplet(same, 2 * same, -same, margin=0.2) == 0
    none = torch.zeros(5, dtype=torch.bool)
    assert margin_triplet(same, same, same, margin=0.2, valid=none) == 0


def test_invalid_triplets_are_left_out_of_mean_and_gradient():
    anchor = noise(4, 3).requires_grad_()
    positive, negative = noise(4, 3, seed=1), noise(4, 3, seed=2)
    valid = torch.tensor([True, False, True, False])
    value = margin_triplet(anchor, positive, negative, margin=2.0, valid=valid)
    kept = margin_triplet(anchor[valid], positive[valid], negative[valid], margin=2.0)
    assert_close(value, kept)
    assert (gradient(value, anchor)[~valid] == 0).all()


def extent_of(latents: Tensor) -> Extent:
    return Extent(rows=len(latents), time=latents.shape[1], content=1)


def ref(latents: Tensor, seed: int = 0, *, margin: float, radius: int) -> Tensor:
    drawn = draw_ref(extent_of(latents), stream(seed, "t"), radius=radius)
    return triplet_ref(latents, drawn, margin=margin, radius=radius)


def paper(latents: Tensor, episode: Tensor, seed: int = 0, **how: float) -> Tensor:
    return triplet_paper(latents, episode, draw_paper(extent_of(latents), stream(seed, "t")), **how)


def test_ref_with_two_rows_always_takes_the_other_row():
    latents = torch.zeros(2, 4, 2)
    latents[0, :, 0] = 1
    latents[1, :, 1] = 1
    for seed in range(20):
        value = ref(latents, seed, margin=2.0, radius=1)
        assert value.item() == pytest.approx(1.0)  # cos 0 to the other row, 1 to the successor


def test_ref_of_equal_latents_is_the_margin():
    value = ref(torch.ones(6, 4, 2), **SHAPES)
    assert value.item() == pytest.approx(0.2)


def test_ref_touches_only_the_middle_frame_and_its_successor():
    latents = noise(8, 4, 3).requires_grad_()
    value = ref(latents, margin=2.0, radius=1)
    touched = gradient(value, latents).abs().sum(dim=(0, 2)) > 0
    assert touched.tolist() == [False, False, True, True]


def test_ref_draws_one_positive_for_the_whole_batch_when_the_radius_allows():
    found = set()
    for seed in range(60):
        latents = noise(8, 4, 3).requires_grad_()
        value = ref(latents, seed, margin=2.0, radius=2)
        touched = gradient(value, latents).abs().sum(dim=(0, 2)) > 0
        found.add(tuple(touched.nonzero()[:, 0].tolist()))
    assert found == {(0, 2), (1, 2), (2, 3)}


@pytest.mark.parametrize("shape", [(1, 4, 2), (4, 1, 2)])
def test_ref_of_a_degenerate_batch_is_zero_with_a_graph(shape: tuple[int, int, int]):
    latents = noise(*shape).requires_grad_()
    value = ref(latents, **SHAPES)
    assert value == 0
    assert gradient(value, latents).abs().max() == 0


def paper_triplets(
    batch: int, time: int, *, episode: Tensor, seed: int, radius: int, other_share: float
) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]]:
    """(row, frame) of anchor, positive and negative, and whether the triplet counts.

    Each latent carries its own address, so what the sampler chose can be read off its arguments.
    """
    rows = torch.arange(batch)[:, None].expand(batch, time)
    address = torch.stack([rows, torch.arange(time).expand(batch, time)], dim=-1).float()
    seen = {}

    def spy(anchor: Tensor, positive: Tensor, negative: Tensor, **rest: Tensor) -> Tensor:
        seen.update(a=anchor, p=positive, n=negative, valid=rest["valid"])
        return anchor.sum()

    patch = pytest.MonkeyPatch()
    patch.setattr(progress, "margin_triplet", spy)
    try:
        paper(address, episode, seed, margin=0.2, radius=radius, other_share=other_share)
    finally:
        patch.undo()
    return [
        (
            tuple(int(v) for v in seen["a"][b, t]),
            tuple(int(v) for v in seen["p"][b, t]),
            tuple(int(v) for v in seen["n"][b, t]),
            bool(seen["valid"][b, t]),
        )
        for b in range(batch)
        for t in range(time)
    ]


@given(
    batch=st.integers(1, 7),
    time=st.integers(1, 6),
    radius=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    episodes=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_paper_sampler_keeps_its_promises(
    batch: int, time: int, radius: int, share: float, episodes: int, seed: int
):
    episode = torch.arange(batch) % episodes
    triplets = paper_triplets(
        batch, time, episode=episode, seed=seed, radius=radius, other_share=share
    )
    assert len(triplets) == batch * time  # every frame is an anchor
    for (row, at), positive, negative, valid in triplets:
        has_near = time > 1
        has_inside = at > radius or time - 1 - at > radius
        has_other = bool((episode != episode[row]).any())
        assert valid == (has_near and (has_inside or has_other))
        if not valid:
            continue
        assert positive[0] == row
        assert 0 < abs(positive[1] - at) <= radius
        if negative[0] == row:
            assert abs(negative[1] - at) > radius
        else:
            assert episode[negative[0]] != episode[row]
        if share == 1.0 and has_other:
            assert negative[0] != row
        if share == 0.0 and has_inside:
            assert negative[0] == row


def test_paper_sampler_reaches_every_admissible_positive_and_negative():
    episode = torch.tensor([0, 0, 1])
    positives, negatives = set(), set()
    for seed in range(300):
        triplets = paper_triplets(3, 4, episode=episode, seed=seed, radius=1, other_share=0.5)
        _, positive, negative, _ = triplets[1]  # row 0, frame 1
        positives.add(positive)
        negatives.add(negative)
    assert positives == {(0, 0), (0, 2)}
    assert negatives == {(0, 3)} | {(2, frame) for frame in range(4)}


def test_paper_sampler_trains_every_frame_and_orders_a_window():
    latents = noise(6, 5, 2).requires_grad_()
    value = paper(latents, torch.arange(6), **PAPER)
    assert (gradient(value, latents).abs().sum(-1) > 0).float().mean() > 0.8
    # An arc shorter than half a turn has its far frames far: no cost. Shuffled in time it has.
    theta = torch.arange(5) * 0.6
    arc = torch.stack([theta.cos(), theta.sin()], dim=-1)[None]
    settings = PAPER | {"margin": 0.1, "other_share": 0.0}
    kept = paper(arc, torch.zeros(1).long(), **settings)
    mixed = paper(arc[:, [0, 3, 1, 4, 2]], torch.zeros(1).long(), **settings)
    assert kept == 0
    assert mixed > 0.1


# --- the path, and what anchors it


def test_bend_knows_straight_right_angle_and_reversal():
    def path(*points: tuple[float, float]) -> Tensor:
        return torch.tensor([points], dtype=torch.float32)

    assert bend(path((0, 0), (1, 1), (2, 2), (3, 3))).item() == pytest.approx(0, abs=1e-6)
    assert bend(path((0, 0), (1, 0), (1, 1))).item() == pytest.approx(1)
    assert bend(path((0, 0), (1, 0), (0, 0))).item() == pytest.approx(2)
    assert bend(path((0, 0), (1, 0))) == 0


def test_prediction_error_is_the_mean_over_coordinates_and_moves_both_sides():
    predicted, reached = noise(2, 3, 8).requires_grad_(), noise(2, 3, 8, seed=1).requires_grad_()
    value = prediction_error(predicted, reached)
    norms = (predicted - reached).square().sum(-1)
    assert_close(value, norms.mean() / 8)
    assert_close(gradient(value, predicted), -gradient(value, reached))


def test_prototypes_average_over_coordinates_and_first_anchor_sums():
    unit = torch.eye(4)
    window = torch.stack([unit[0], unit[3], unit[1]])[None]
    assert prototypes(window) == 0
    assert prototypes(torch.zeros(3, 5, 4)).item() == pytest.approx(0.25)
    step = torch.tensor([[2, 7, 12], [3, 8, 13]])
    start = torch.zeros(2, 3, 4)
    assert first_anchor(start, step, steps=3).item() == pytest.approx(1)
    start[0, 0] = unit[0]
    assert first_anchor(start, step, steps=3) == 0
    later = start.requires_grad_()
    nothing = first_anchor(later, step + 3, steps=3)
    assert nothing == 0
    assert gradient(nothing, later).abs().max() == 0


def test_order_is_log_2_for_a_constant_and_falls_for_a_rising_score():
    assert order(torch.zeros(3, 5)).item() == pytest.approx(math.log(2))
    rising = torch.arange(5.0).expand(3, 5)
    assert order(10 * rising) < 1e-3
    assert order(-rising) > 1


def test_rollout_term_over_one_block_is_the_first_prediction():
    model = small_model().eval()  # no dropout, no batch statistics
    scene = scene_of(model, only("rollout", rollout_blocks=1), random_batch())
    expected = prediction_error(scene.predicted[:, :1], scene.latents[:, 1:2])
    assert_close(TERMS["rollout"](scene), expected)


# --- the sum


def test_loss_is_the_weighted_sum_and_zero_weights_are_not_computed(
    monkeypatch: pytest.MonkeyPatch,
):
    def explode(scene: total.Scene) -> Tensor:
        raise AssertionError("computed")

    for name in ("straighten", "rollout", "prototype", "first_anchor", "progress_head"):
        monkeypatch.setitem(TERMS, name, explode)
    found = losses(scene_of(small_model(), Objectives(), random_batch()))
    assert set(found) == {"prediction", "sigreg", "triplet", "loss"}
    expected = found["prediction"] + 0.09 * found["sigreg"] + 0.1 * found["triplet"]
    assert_close(found["loss"], expected)


def test_terms_and_weights_must_match_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TERMS, "sigregg", TERMS["sigreg"])
    with pytest.raises(RuntimeError, match="terms without a weight: \\['sigregg'\\]"):
        weights(Objectives())
    monkeypatch.delitem(TERMS, "sigregg")
    monkeypatch.delitem(TERMS, "triplet")
    with pytest.raises(RuntimeError, match="weights without a term: \\['triplet'\\]"):
        weights(Objectives())


def test_targets_are_live():
    """No stop-gradient: the encoder is also trained through what is predicted."""
    scene = scene_of(small_model(), only("prediction"), random_batch())
    by_target = prediction_error(scene.predicted.detach(), scene.latents[:, 1:])
    assert (gradient(by_target, scene.latents)[:, 1:] != 0).any()
    assert gradient(TERMS["prediction"](scene), scene.latents)[:, 1:].any()


def test_the_last_action_block_is_never_read():
    model, batch = small_model().eval(), random_batch()
    found = losses(scene_of(model, Objectives(), batch))["loss"]
    batch["actions"][:, -1] = float("nan")
    assert torch.equal(losses(scene_of(model, Objectives(), batch))["loss"], found)


def train(steps: int, *, settings: Objectives, seed: int = 0) -> list[float]:
    """A few steps of the loop's arithmetic on random windows."""
    model = small_model(stirred=False, seed=seed, progress_head=settings.progress_head_weight > 0)
    optimizer = make_optimizer(model, Train(learning_rate=1e-3))
    values = []
    for step in range(steps):
        torch.manual_seed(1000 * seed + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak=1e-3, warmup_share=0.05)
        loss = losses(scene_of(model, settings, random_batch(seed=step), step=step))["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(loss.item())
    return values


def test_one_seed_gives_identical_losses_for_20_steps():
    everything = Objectives.model_validate(
        {f"{term}_weight": 0.1 for term in TERMS} | {"triplet_sampler": "paper"}
    )
    first, again = train(20, settings=everything), train(20, settings=everything)
    assert first == again
    assert train(20, settings=everything, seed=1) != first


# --- what is watched


def test_effective_rank_counts_directions():
    rows = noise(4000, 6)
    assert effective_rank(rows) == pytest.approx(6, abs=0.05)
    assert effective_rank(rows * torch.tensor([1.0, 1, 1, 0, 0, 0])) == pytest.approx(3, abs=0.05)
    assert effective_rank(torch.ones(10, 4)) == pytest.approx(1)


def test_health_sees_a_collapsed_progress_part():
    model = small_model(k=2)
    with torch.no_grad():
        model.projector.down.weight[:2] = 0
    health = latent_health(scene_of(model, Objectives(), random_batch()))
    assert health["progress_std_mean"] == pytest.approx(0, abs=1e-6)
    assert health["content_std_mean"] > 0.01
    assert health["triplet_active_share"] == 1
    assert health["triplet_positive_cosine"] == pytest.approx(1, abs=1e-4)


@pytest.fixture(name="conflict")
def _conflict() -> Callable[[Objectives], dict[str, Tensor]]:
    def measure(settings: Objectives) -> dict[str, Tensor]:
        torch.manual_seed(0)
        scene = scene_of(small_model(), settings, random_batch())
        return gradient_cosines(scene)

    return measure


def test_gradient_cosine_of_a_term_with_its_double_is_one(
    conflict: Callable[[Objectives], dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(TERMS, "straighten", lambda scene: -3 * TERMS["sigreg"](scene))
    found = conflict(Objectives(straighten_weight=0.1))
    assert found["conflict_sigreg_straighten"].item() == pytest.approx(-1, abs=1e-5)
    assert abs(found["conflict_prediction_sigreg"].item()) < 1
    assert len(found) == 6


def test_measuring_conflict_changes_nothing_in_the_model():
    model = small_model()
    scene = scene_of(model, Objectives(rollout_weight=0.5), random_batch())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    value = losses(scene)["loss"]
    gradient_cosines(scene)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in model.parameters())
    value.backward()  # the step that is measured still goes on
