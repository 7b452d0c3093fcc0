"""The model is LeWM's to the unit, causal, and rolls out as its one-step prediction repeated."""

import pytest
import torch
from torch.testing import assert_close

from sdjepa.config import Model, Objectives
from sdjepa.model.layers import BatchNorm, attend_few
from sdjepa.model.split import polar_features
from sdjepa.model.world_model import WorldModel, build, count_parameters
from sdjepa.objectives.total import losses
from small import SIZES, noise, random_batch, scene_of, small_model

PAPER = {"action_dim": 2, "frame_skip": 5}


def on_meta(**changes: object) -> WorldModel:
    """The paper's sizes without memory or initialisation."""
    with torch.device("meta"):
        return WorldModel(Model.model_validate(PAPER | changes))


def test_parameters_of_every_module_equal_the_published_arithmetic():
    model = on_meta()
    assert {
        name: count_parameters(getattr(model, name))
        for name in (
            "encoder",
            "predictor",
            "projector",
            "prediction_projector",
            "action_encoder",
        )
    } == {
        "encoder": 5_501_376,
        "predictor": 10_791_360,
        "projector": 792_768,
        "prediction_projector": 792_768,
        "action_encoder": 156_206,
    }
    assert count_parameters(model.encoder.embed) == 113_088
    assert count_parameters(model.encoder.blocks) == 5_338_368
    assert count_parameters(model.predictor.blocks[0]) == 1_798_400
    assert count_parameters(model) == 18_034_478
    buffers = sum(b.numel() for b in model.state_dict().values()) - count_parameters(model)
    assert count_parameters(model) + buffers == 18_042_672  # the paper's 18.04 M


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"action_dim": 5}, 18_034_628),
        ({"k": 0}, 18_034_478),
        ({"k": 8}, 18_034_478),
        ({"polar": "ref"}, 18_034_478 + 37_632),
        ({"polar": "paper"}, 18_034_478 + 3 * 192 + 192),
        ({"split": "learned", "k": 4}, 18_034_478 + 188 * 4),
        ({"progress_head": True}, 18_034_478 + 2),
        ({"action_width": "block"}, 18_034_478),
        ({"action_dim": 5, "action_width": "block"}, 18_034_628 + 15 * 26 + 15 * 768),
    ],
)
def test_parameters_of_each_variant(changes: dict[str, object], parameters: int):
    assert count_parameters(on_meta(**changes)) == parameters


def test_weights_depend_on_the_seed_alone_and_leave_the_global_state():
    config = Model.model_validate(SIZES)
    torch.manual_seed(1)
    first = build(config, seed=5).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == drawn
    again, other = build(config, seed=5).state_dict(), build(config, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["encoder.class_token"], other["encoder.class_token"])


def test_a_new_predictor_ignores_actions_and_is_a_normalised_copy():
    model = small_model(stirred=False).eval()
    latents, actions = noise(2, 3, 16), noise(2, 3, 10)
    assert torch.equal(model.predict(latents, actions), model.predict(latents, -7 * actions))
    condition = model.embed_actions(actions)
    expected = torch.nn.functional.layer_norm(latents + model.predictor.position, (16,))
    assert_close(model.predictor(latents, condition), expected)


@pytest.mark.parametrize("polar", ["off", "ref", "paper"])
def test_a_prediction_sees_nothing_that_comes_later(polar: str):
    model = small_model(polar=polar).eval()
    latents, actions = noise(4, 3, 16), noise(4, 3, 10)
    before = model.predict(latents, actions)
    for changed in (latents, actions):
        changed[:, 2] = noise(*changed[:, 2].shape, seed=1)
        after = model.predict(latents, actions)
        assert_close(after[:, :2], before[:, :2])
        assert (after[:, 2] - before[:, 2]).abs().max() > 1e-2
        before = after


def naive_rollout(model: WorldModel, latent: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """One candidate, one step at a time, from the definition."""
    path, taken = [latent], []
    for action in actions:
        taken.append(action)
        context = torch.stack(path[-model.config.history :])[None]
        blocks = torch.stack(taken[-model.config.history :])[None]
        path.append(model.predict(context, blocks)[0, -1])
    return torch.stack(path[1:])


@pytest.mark.parametrize("polar", ["off", "ref"])
def test_rollout_is_the_one_step_prediction_repeated(polar: str):
    model = small_model(polar=polar).eval()
    latents, actions = noise(15, 1, 16), noise(15, 5, 10)
    reached = model.rollout(latents, actions[:, :0], actions)
    assert reached.shape == (15, 5, 16)
    naive = [naive_rollout(model, latents[i, 0], actions[i]) for i in range(15)]
    assert_close(reached, torch.stack(naive), atol=1e-5, rtol=1e-5)


def test_rollout_from_a_longer_past_continues_the_shorter_one():
    model = small_model().eval()
    latents, actions = noise(3, 1, 16), noise(3, 6, 10)
    whole = model.rollout(latents, actions[:, :0], actions)
    past = torch.cat([latents, whole[:, :4]], dim=1)  # more than the history of 3
    assert_close(model.rollout(past, actions[:, :4], actions[:, 4:]), whole[:, 4:])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_teacher_forcing_equals_a_loop_over_steps(steps: int):
    model = small_model().eval()
    latents, actions = noise(3, steps + 1, 16), noise(3, steps, 10)
    found = model.teacher_forced(latents, actions)
    assert found.shape == (3, steps, 16)
    for step in range(steps):
        low = max(0, step + 1 - model.config.history)
        alone = model.predict(latents[:, low : step + 1], actions[:, low : step + 1])[:, -1]
        assert_close(found[:, step], alone, atol=1e-5, rtol=1e-5)


def test_frames_are_encoded_one_by_one():
    model = small_model().eval()
    frames = random_batch(2, 3)["frames"]
    together = model.encode(frames)
    alone = torch.stack([model.encode(frames[:, i : i + 1])[:, 0] for i in range(3)], dim=1)
    assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_patches_are_the_pixels_a_convolution_would_see():
    model = small_model(patch=7)
    encoder = model.encoder
    frames = random_batch(2, 1)["frames"][:, 0]
    pixels = (frames.float() - encoder.pixel_mean) / encoder.pixel_std
    kernel = encoder.embed.weight.view(24, 3, 7, 7)
    convolved = torch.nn.functional.conv2d(
        pixels.permute(0, 3, 1, 2), kernel, encoder.embed.bias, stride=7
    )
    assert_close(
        encoder.embed(encoder.normalise(encoder.unfold(frames))),
        convolved.flatten(2).transpose(1, 2),
        atol=1e-5,
        rtol=1e-5,
    )


def test_pixels_are_normalised_as_imagenet():
    encoder = small_model().encoder
    white = torch.full((1, 28, 28, 3), 255, dtype=torch.uint8)
    first = encoder.normalise(encoder.unfold(white))[0, 0].view(3, 14 * 14)[:, 0]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert_close(first, (1 - mean) / std)


@pytest.mark.parametrize("polar", ["ref", "paper"])
def test_polar_conditioning_reads_angle_and_radius_and_nothing_else(polar: str):
    model = small_model(polar=polar, k=4).eval()
    embedded = noise(1, 1, 16)
    zero = torch.zeros(1, 1, 16)

    def condition(latents: torch.Tensor) -> torch.Tensor:
        return model._condition(latents, embedded)

    content = zero.clone()
    content[..., 4:] = 3
    assert torch.equal(condition(zero), condition(content))
    turned = zero.clone()
    turned[..., 0] = 1
    longer = 2 * turned
    assert not torch.allclose(condition(turned), condition(-turned))
    assert not torch.allclose(condition(turned), condition(longer))


def test_polar_features_are_sine_cosine_and_length():
    progress = noise(50, 4)
    sine, cosine, r = polar_features(progress).unbind(-1)
    theta = torch.atan2(progress[:, 1], progress[:, 0])
    assert_close(sine, theta.sin())
    assert_close(cosine, theta.cos())
    assert_close(r, progress.norm(dim=-1))


@pytest.mark.parametrize("polar", ["ref", "paper"])
def test_polar_gradient_is_finite_at_zero_radius(polar: str):
    model = small_model(polar=polar)
    latents = noise(2, 3, 16)
    latents[..., :2] = 0
    latents.requires_grad_()
    model.predict(latents, noise(2, 3, 10)).square().sum().backward()
    assert latents.grad is not None
    assert latents.grad.isfinite().all()
    assert (latents.grad[..., :2] != 0).any()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_own_batchnorm_equals_torch_in_one_process():
    ours, theirs = BatchNorm(6), torch.nn.BatchNorm1d(6)
    for seed in range(3):
        rows = noise(20, 6, seed=seed) * 3 + 1
        assert torch.equal(ours(rows), theirs(rows))
    assert torch.equal(ours.running_var, theirs.running_var)
    assert torch.equal(ours.eval()(rows), theirs.eval()(rows))


def test_latents_of_a_batch_do_not_depend_on_each_other_when_evaluating():
    model = small_model().eval()
    frames = random_batch(6, 2)["frames"]
    assert_close(model.encode(frames)[:2], model.encode(frames[:2]), atol=1e-5, rtol=1e-5)


def test_a_model_without_the_datasets_numbers_is_refused():
    with pytest.raises(ValueError, match="action_dim"):
        WorldModel(Model())


def test_every_parameter_learns():
    """No module is built and then left out, but for shifts that a batch's mean takes away again."""
    model = small_model(polar="ref", progress_head=True, k=4, split="learned")
    settings = Objectives(progress_head_weight=0.1, straighten_weight=0.05)
    losses(scene_of(model, settings, random_batch()))["loss"].backward()
    most = {
        n: 0.0 if p.grad is None else float(p.grad.abs().max()) for n, p in model.named_parameters()
    }
    still = {name for name, gradient in most.items() if gradient < 1e-5}  # rounding is below 1e-7
    before = {"encoder.norm": "projector.up", "predictor.norm": "prediction_projector.up"}
    assert still == {f"{name}.bias" for pair in before.items() for name in pair}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [6, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_of_few_tokens_is_the_library_s(causal: bool, queries: int, dropout: float):
    """Dropout too: from the same seed it drops the same weights."""
    q, k, v = (noise(5, 3, 6, 4, seed=seed).requires_grad_() for seed in range(3))
    direction, found = noise(5, 3, queries, 4, seed=3), []
    for attend in (attend_few, torch.nn.functional.scaled_dot_product_attention):
        torch.manual_seed(1)
        out = attend(q[:, :, :queries], k, v, dropout_p=dropout, is_causal=causal)
        found.append([out, *torch.autograd.grad(out, [q, k, v], direction)])
    assert_close(*found, atol=1e-6, rtol=1e-5)
