"""Split and merge are inverses; the learned split is orthogonal whatever its weights are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sdjepa.model.split import Parts, Split, angle, plane_radius, radius
from small import noise, small_model

widths = st.integers(2, 12).flatmap(
    lambda latent: st.tuples(st.just(latent), st.integers(0, latent - 1))
)


def tilted(latent: int, k: int, *, scale: float, seed: int = 0) -> Split:
    split = Split(latent, k, learned=True)
    if split.tilt is not None:
        with torch.no_grad():
            split.tilt.copy_(scale * noise(latent - k, k, seed=seed))
    return split


@given(widths, st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_fixed_split_is_slicing_and_exactly_inverted(width: tuple[int, int], seed: int):
    latent, k = width
    latents, split = noise(3, 2, latent, seed=seed), Split(latent, k, learned=False)
    parts = split(latents)
    assert torch.equal(parts.progress, latents[..., :k])
    assert torch.equal(parts.content, latents[..., k:])
    assert torch.equal(split.merge(parts), latents)


@given(widths, st.floats(0, 20), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_learned_split_is_inverted_both_ways(width: tuple[int, int], scale: float, seed: int):
    latent, k = width
    split = tilted(latent, k, scale=scale, seed=seed)
    latents = noise(5, latent, seed=seed)
    assert_close(split.merge(split(latents)), latents, atol=1e-4, rtol=1e-4)
    parts = Parts(progress=latents[:, :k], content=latents[:, k:])
    again = split(split.merge(parts))
    assert_close(again.progress, parts.progress, atol=1e-4, rtol=1e-4)
    assert_close(again.content, parts.content, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_the_rotation_is_orthogonal_by_construction(k: int, scale: float):
    rotation = tilted(192, k, scale=scale).rotation()
    assert rotation is not None
    assert_close(rotation @ rotation.T, torch.eye(192), atol=2e-5, rtol=0)


def test_the_learned_split_starts_as_the_fixed_one_and_can_leave_it():
    latents = noise(4, 16)
    split = Split(16, 4, learned=True)
    assert torch.equal(split(latents).progress, latents[:, :4])
    split(latents).progress.square().sum().backward()
    assert split.tilt is not None
    assert split.tilt.grad is not None
    assert split.tilt.grad.abs().max() > 0
    assert not torch.allclose(tilted(16, 4, scale=0.3)(latents).progress, latents[:, :4])


def test_a_tilt_reaches_any_content_direction():
    """The chart is not a small neighbourhood: progress can turn nearly onto a content axis."""
    split = Split(3, 1, learned=True)
    assert split.tilt is not None
    with torch.no_grad():
        split.tilt[0, 0] = math.tan(math.pi / 4)  # Cayley: the angle turned is 2 atan(tilt)
    turned = split(torch.eye(3)).progress[:, 0]
    assert_close(turned.abs(), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)


def test_whole_latent_distances_do_not_notice_the_rotation():
    latents, split = noise(2, 16), tilted(16, 4, scale=1.0)
    first, second = split(latents[:1]), split(latents[1:])
    parted = (first.progress - second.progress).square().sum() + (
        first.content - second.content
    ).square().sum()
    assert_close(parted, (latents[0] - latents[1]).square().sum())


@given(st.floats(-math.pi + 1e-3, math.pi - 1e-3), st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_angle_and_radius_are_polar_coordinates_at_k_2(theta: float, r: float):
    progress = r * torch.tensor([math.cos(theta), math.sin(theta)], dtype=torch.float64)
    assert angle(progress).item() == pytest.approx(theta, abs=1e-6)
    assert radius(progress).item() == pytest.approx(r)
    assert plane_radius(progress).item() == pytest.approx(r)


def test_beyond_k_2_the_angle_ignores_what_the_radius_counts():
    progress = torch.tensor([3.0, 4.0, 12.0, 0.0])
    assert radius(progress) == 13
    assert plane_radius(progress) == 5
    assert angle(progress) == angle(progress[:2])


def test_slicing_keeps_every_bit_inside_autocast():
    """A product with an injection matrix would round the latents to bfloat16 here."""
    model = small_model(k=2)
    latents = noise(3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.split(latents).content, latents[:, 2:])
        learned = tilted(16, 2, scale=0.5)
        inside = learned(latents).content
        merged = learned.merge(learned(latents))
    assert torch.equal(inside, learned(latents).content)
    assert_close(merged, latents, atol=1e-5, rtol=1e-5)
