"""The learning rate's corners, and which parameters decay."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdjepa.config import Train
from sdjepa.train.schedule import learning_rate, make_optimizer
from small import small_model

PAPER = {"peak": 5e-5, "warmup_share": 0.05}


@given(st.integers(20, 10_000_000))
def test_published_corners(total: int):
    assert learning_rate(0, total, **PAPER) == 0
    assert learning_rate(total // 20, total, **PAPER) == 5e-5
    assert learning_rate(total // 20 - 1, total, **PAPER) < 5e-5
    assert learning_rate(total, total, **PAPER) < 1e-18


@given(st.integers(1, 500), st.floats(0, 0.9))
def test_rises_then_falls_within_its_bounds(total: int, share: float):
    rates = [learning_rate(s, total, peak=1.0, warmup_share=share) for s in range(total + 1)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) >= 0
    assert max(rates) <= 1


def test_cosine_halfway_is_half_the_peak():
    warmup, total = 100, 2000
    halfway = warmup + (total - warmup) // 2
    assert math.isclose(learning_rate(halfway, total, peak=1.0, warmup_share=0.05), 0.5)


def test_without_warmup_the_first_step_counts():
    assert learning_rate(0, 100, peak=1.0, warmup_share=0.0) == 1.0


@pytest.mark.parametrize("decay_on", ["all", "matrices"])
def test_decay_covers_what_it_says(decay_on: str):
    model = small_model(split="learned", polar="ref")
    optimizer = make_optimizer(model, Train.model_validate({"decay_on": decay_on}))
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert len(decay) == len(list(model.parameters()))
    free = {name for name, p in model.named_parameters() if decay[id(p)] == 0}
    if decay_on == "all":
        assert free == set()
    else:
        assert {"split.tilt", "encoder.position", "encoder.norm.weight", "polar.bias"} <= free
        assert not {name for name in free if name.endswith(("qkv.weight", "up.weight"))}


def test_one_step_moves_the_weights_by_the_learning_rate():
    """Adam's first step is lr * sign(gradient), whatever the gradient's size."""
    model = small_model()
    settings = Train(weight_decay=0.0, learning_rate=1e-3)
    optimizer = make_optimizer(model, settings)
    bias = model.projector.down.bias
    before = bias.detach().clone()
    (bias * torch.linspace(1, 5, len(bias))).sum().backward()
    optimizer.step()
    torch.testing.assert_close(before - bias.detach(), torch.full_like(before, 1e-3))
