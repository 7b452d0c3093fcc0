"""Ways to take a step: faster, smaller or averaged, they must be the same step."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sdjepa.config import Config, Model, Train
from sdjepa.data.episodes import Episodes
from sdjepa.data.frames import background
from sdjepa.data.loader import Batch, Loader
from sdjepa.data.patches import Reading
from sdjepa.model.encoder import Encoder
from sdjepa.model.world_model import build
from sdjepa.objectives.total import losses, weights
from sdjepa.resolve import change, resolve
from sdjepa.runs import Run
from sdjepa.train.average import Average
from sdjepa.train.checkpoint import load_checkpoint
from sdjepa.train.loop import train
from sdjepa.train.monitor import token_cover
from sdjepa.train.muon import Muon, orthogonalise
from sdjepa.train.schedule import make_optimizer
from sdjepa.train.step import Recorded, _tensors, look, numbers
from sdjepa.train.trackers import Trackers
from small import SIZES, Crash, crash_at, noise, random_batch, scene_of, small_config, small_model

# --- few tokens


def encoder(tokens: int, *, size: int = 56) -> Encoder:
    """An encoder of 16 patches with weights that do not depend on how many are read."""
    return build(
        Model.model_validate(SIZES | {"image_size": size, "tokens": tokens}), seed=3
    ).encoder


def some_frames(count: int = 3, size: int = 56) -> Tensor:
    return random_batch(count, 1, size=size)["frames"][:, 0]


def test_reading_every_patch_in_another_order_is_reading_every_patch():
    frames = some_frames()
    assert_close(encoder(16)(frames), encoder(0)(frames), atol=1e-6, rtol=1e-5)


def test_patches_that_equal_the_background_may_be_left_out_and_moving_ones_are_not():
    few = encoder(2)
    still = some_frames(1)
    few.background.copy_(still[0])
    moved = still.repeat(4, 1, 1, 1)
    for row, (y, x) in enumerate([(0, 0), (20, 50), (55, 55), (30, 10)]):
        moved[row, y, x] = 255 - moved[row, y, x]
    tokens = few.tokens(moved)[:, 1:]
    everything = encoder(0).tokens(moved)[:, 1:]
    for row, patch in enumerate([0, 7, 15, 8]):
        gap = (tokens[row] - everything[row, patch]).abs().amax(-1)
        assert gap.min() < 1e-6, f"frame {row}: the patch that moved was not read"
    features = few(moved)
    assert (features - few(still)).abs().amax(-1).min() > 1e-6


def test_cover_is_the_share_of_change_that_is_seen():
    model = small_model(image_size=56, tokens=2)
    frames = torch.zeros(1, 1, 56, 56, 3, dtype=torch.uint8)
    for patch, value in ((0, 30), (5, 10), (9, 10)):
        y, x = divmod(patch, 4)
        frames[0, 0, 14 * y, 14 * x, 0] = value
    batch = Batch(frames, torch.zeros(1, 1, 10), torch.zeros(1), torch.zeros(1, 1))
    assert token_cover(model, batch)["token_cover"] == pytest.approx(40 / 50)
    assert token_cover(small_model(), batch) == {}


def test_the_background_is_what_most_frames_show(tiny_data: Path):
    data = Episodes.open(tiny_data)
    still = background(data, count=101)
    frames = data.frames(np.arange(0, data.num_rows, 7))
    changed = (frames != still).any(-1).mean(axis=(1, 2))
    assert changed.max() < 0.25
    assert changed.min() > 0


# --- averaged weights, Muon


def test_an_average_of_weights_that_stand_still_is_those_weights_and_follows_them_when_they_move():
    model = small_model()
    average = Average(model, decay=0.9)
    name = "encoder.embed.weight"
    first = average.values[name].clone()
    expected = first.clone()
    for step in range(200):
        with torch.no_grad():
            model.get_parameter(name).add_(0.01)
        average.advance(step)
        average.update(model)
        share = 1 - min(0.9, (1 + step) / (10 + step))
        expected += share * (model.get_parameter(name).detach() - expected)
    assert_close(average.values[name], expected)
    # A ramp followed at share s lags by one step's rise times (1 - s) / s.
    lag = model.get_parameter(name).detach() - average.values[name]
    assert_close(lag, torch.full_like(lag, 0.09), atol=1e-3, rtol=0)


def test_the_model_is_itself_again_after_standing_in_for_its_average():
    model = small_model()
    average = Average(model, decay=0.5)
    with torch.no_grad():
        model.get_parameter("encoder.embed.weight").mul_(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with average.instead(model):
        assert_close(
            model.get_parameter("encoder.embed.weight") * 2, before["encoder.embed.weight"]
        )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_is_saved_is_the_average_and_what_is_resumed_is_not(
    tiny_config: Config, tmp_path: Path
):
    config = change(tiny_config, ["train.ema=0.9", "train.optimizer=muon"])
    whole = train(Run.create(tmp_path / "whole", config))

    run = Run.create(tmp_path / "run", config)
    with pytest.raises(Crash):
        train(run, progress=crash_at(6))
    resumed = train(run, resume=True)
    for file in ("model.safetensors", "training.safetensors"):
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()
    from safetensors.torch import load_file

    name = "encoder.embed.weight"
    last = load_file(whole / "training.safetensors")[f"{name}::last"]
    assert not torch.equal(load_checkpoint(whole).model.get_parameter(name), last)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_directions(
    shape: tuple[int, int, int],
):
    matrices = noise(*shape)
    turned = orthogonalise(matrices)
    values = torch.linalg.svdvals(turned)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    overlap = torch.einsum("nij,nij->n", turned, u @ v) / values.shape[-1]
    assert overlap.min() > 0.8
    assert_close(turned[:1], orthogonalise(matrices[:1]))  # company changes nothing


def test_muon_moves_what_is_no_matrix_exactly_as_adamw():
    ours, theirs = (noise(5, 7).clone().requires_grad_() for _ in range(2))
    mine = Muon([{"params": [ours], "weight_decay": 0.1}], lr=1e-2, betas=(0.9, 0.95))
    torchs = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(6):
        for tensor, optimizer in ((ours, mine), (theirs, torchs)):
            tensor.grad = noise(5, 7, seed=step)
            optimizer.step()
    assert_close(ours, theirs)


def test_muon_takes_the_matrices_of_blocks_and_nothing_else():
    model = small_model(k=2)
    optimizer = make_optimizer(model, Train(optimizer="muon"))
    turned = {
        id(p) for group in optimizer.param_groups if group["matrices"] for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert (id(parameter) in turned) == (".blocks." in name and parameter.ndim == 2), name


# --- the same step in other ways


def gradients(accumulate: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = small_model(dropout=0.0).train()
    config = small_config(resolve(settings=[f"train.accumulate={accumulate}"]))
    batch = Batch(**random_batch(8))
    scene = look(model, config, batch, drawn=numbers(config, batch, step=0))
    losses(scene)["loss"].backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return grads, dict(model.named_buffers())


def test_a_batch_encoded_in_parts_has_the_gradients_and_statistics_of_the_whole():
    whole, statistics = gradients(1)
    for parts in (2, 3):
        found, buffers = gradients(parts)
        for name, grad in whole.items():
            assert_close(found[name], grad, atol=1e-6, rtol=1e-4)
        for name, buffer in statistics.items():
            assert_close(buffers[name], buffer)


def test_every_product_of_the_predictor_is_in_the_precision_of_the_run():
    """Also those of a rollout: outside autocast they were float32, a third of a step's time."""
    config = change(
        small_config(resolve()),
        ["objectives.rollout_weight=1.0", "objectives.rollout_blocks=3", "train.precision=bf16"],
    )
    model = build(config.model, seed=0).train()
    found: list[torch.dtype] = []
    for module in model.predictor.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _m, _i, out: found.append(out.dtype))
    batch = Batch(**random_batch(8))
    scene = look(model, config, batch, drawn=numbers(config, batch, step=0))
    passes = 3  # one over true latents, two over imagined ones
    assert len(found) % passes == 0
    terms = losses(scene)
    assert set(found) == {torch.bfloat16}
    assert all(term.dtype == torch.float32 for term in terms.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        ["objectives.triplet_weight=0.1"],
        [
            "objectives.rollout_weight=1.0",
            "objectives.triplet_sampler=paper",
            "objectives.straighten_weight=0.1",
            "model.tokens=3",
        ],
    ],
)
def test_the_whole_forward_pass_is_one_graph_and_computes_what_eager_does(sets: list[str]):
    """What a GPU compiles, traced here without generating code: no graph break, equal terms."""
    config = small_config(resolve(k=2, settings=["model.k=2"]))
    config = change(config, [*sets, "model.dropout=0.0", "train.precision=bf16"])
    model = build(config.model, seed=0).train()
    optimizer = make_optimizer(model, config.train)
    recorded = Recorded(model, config, optimizer=optimizer, average=None)
    traced: Callable = torch.compile(
        recorded._forward._torchdynamo_orig_callable, fullgraph=True, backend="aot_eager"
    )
    batch = Batch(**random_batch(8))
    drawn = numbers(config, batch, step=0)
    terms, (latents, *_) = traced(_tensors(batch), drawn)
    expected = losses(look(model, config, batch, drawn=drawn), active=weights(config.objectives))
    assert terms.keys() == expected.keys()
    for name, term in expected.items():
        assert_close(terms[name], term, atol=1e-3, rtol=1e-2)
    terms["loss"].backward()
    assert latents.shape == (8, 4, config.model.latent)


def test_random_numbers_of_a_step_do_not_depend_on_what_was_drawn_before():
    config = small_config(resolve())
    batch = Batch(**random_batch(8))
    for step in (0, 5):
        fresh = numbers(config, batch, step=step)
        torch.rand(3)
        again = numbers(config, batch, step=step)
        for name, drawn in fresh.items():
            assert all(torch.equal(a, b) for a, b in zip(drawn, again[name], strict=True))
    model = small_model()
    first, second = (scene_of(model, config.objectives, random_batch(8), step=s) for s in (0, 1))
    assert not torch.equal(first.drawn["sigreg"][0], second.drawn["sigreg"][0])


# --- where frames wait


@pytest.mark.parametrize("where", ["host", "disk"])
def test_streamed_batches_equal_resident_ones_also_across_epochs_and_jumps(
    where: str, tiny_config: Config, tiny_data: Path
):
    data = Episodes.open(tiny_data)

    def loader(place: str) -> Loader:
        settings = tiny_config.data.model_copy(update={"frames_on": place})
        shared = {"seed": 1, "stats": data.action_stats(), "device": torch.device("cpu")}
        return Loader(data, settings, split="train", batch=8, **shared)

    here, there = loader("device"), loader(where)
    last = here.batches_per_epoch
    for step in (0, 1, 2, last - 2, last - 1, last, last + 1, 1):
        for mine, other in zip(_tensors(here(step)), _tensors(there(step)), strict=True):
            assert torch.equal(mine, other), step
    kept = [there(step).frames for step in range(5)]
    for step, frames in enumerate(kept):  # a later batch does not write over an earlier one
        assert torch.equal(frames, here(step).frames)


@pytest.mark.parametrize("changed", [0, 2, 3, 9])
@pytest.mark.parametrize("size", [56, 280])  # 400 patches: their numbers need both bytes
def test_an_encoder_reads_of_a_packed_frame_what_it_reads_of_the_whole(changed: int, size: int):
    few = encoder(3, size=size)
    still = some_frames(1, size)[0]
    few.background.copy_(still)
    frames = still.repeat(5, 1, 1, 1)
    generator = torch.Generator().manual_seed(changed)
    for row in range(5):
        for patch in torch.randperm((size // 14) ** 2, generator=generator)[:changed].tolist():
            y, x = divmod(patch, size // 14)
            # some of them equally far
            frames[row, 14 * y : 14 * y + 1 + patch % 3, 14 * x : 14 * x + 14] ^= 85
    packed = Reading(still, patch=14, kept=3).pack(frames)
    for mine, whole in zip(few.read(packed), few.read(frames), strict=True):
        assert torch.equal(mine, whole)
    assert torch.equal(few(packed), few(frames))


def test_a_run_whose_frames_wait_as_patches_is_the_run_whose_frames_wait_whole(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sdjepa.data.feed._STRETCH", 1 << 16)  # several stretches, the last shorter
    curves = []
    for where in ("device", "host"):
        config = change(tiny_config, ["model.tokens=2", f"data.frames_on={where}"])
        run = Run.create(tmp_path / where, config)
        train(run)
        curves.append([record["loss"] for record in run.metrics()])
    assert curves[0] == curves[1]


# --- trackers


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from sdjepa.train import trackers

    seen: list[int] = []

    def fragile(run: Run) -> tuple[trackers.Log, trackers.Close]:
        def log(numbers: dict[str, float], step: int) -> None:
            seen.append(step)
            if step == 3:
                raise ConnectionError("the dashboard is down")

        return log, lambda: seen.append(-1)

    monkeypatch.setitem(trackers.OPENERS, "fragile", fragile)
    config = change(tiny_config, ["train.trackers=['fragile', 'wandb']"])
    run = Run.create(tmp_path / "run", config)
    train(run)
    assert seen == [1, 2, 3]
    note = (run.path / "trackers.log").read_text()
    assert "fragile dropped: ConnectionError: the dashboard is down" in note
    assert len(run.metrics()) == 12


def test_tensorboard_gets_every_logged_step(tiny_config: Config, tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run.create(tmp_path / "run", tiny_config)
    tracker = Trackers(["tensorboard"], run)
    for step in (1, 2):
        tracker.log({"step": step, "loss": 0.5 * step}, step=step)
    tracker.close()
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]


# --- what the benchmarks of runs tell


def test_agreement_is_measured_on_the_same_batches_and_reported_for_each_way(
    tiny_config: Config, tiny_data: Path
):
    from sdjepa.bench.runs import agree

    sets = [f"model.{key}={value}" for key, value in SIZES.items()]
    sets += ["train.batch=8", "train.device=cpu", "objectives.sigreg_directions=16"]
    told: list[str] = []
    known = list(agree(tiny_data, steps=3, settings=tuple(sets), tell=told.append))
    assert len(told) == 5
    assert [(len(k["losses"]), len(k["relative_gaps"])) for k in known] == [(1, 0), (2, 1), (3, 2)]
    found = known[-1]
    # Without a GPU the recorded way is the eager one, to the last bit; bf16 is not float32.
    assert found["relative_gaps"]["recorded bf16 - eager bf16"]["largest"] == 0
    assert 0 < found["relative_gaps"]["eager bf16 - eager fp32"]["largest"] < 0.1
    assert set(found["validation"]) == set(found["losses"])


def test_scaling_times_every_size_here_and_on_the_host(monkeypatch: pytest.MonkeyPatch):
    from sdjepa.bench import runs

    monkeypatch.setattr(runs, "ROWS", 2)
    known = list(runs.scale(resident=[5, 9], streamed=[7], small=True, tell=lambda line: None))
    assert [len(k["timings"]) for k in known] == [1, 2, 3, 4, 5, 6]
    rows = [(r["tokens"], r["where"], r["frames"]) for r in known[-1]["timings"]]
    assert rows == [
        (t, w, n) for t in (0, 31) for w, n in (("device", 5), ("device", 9), ("host", 7))
    ]
    assert all(r["seconds"] > 0 for r in known[-1]["timings"])


@pytest.mark.parametrize(
    ("only", "rows"),
    [
        (["host"], [(0, "host"), (31, "host")]),
        (["31 patches on the device"], [(31, "device")]),
        (["all patches", "31 patches on the host"], [(0, "device"), (0, "host"), (31, "host")]),
    ],
)
def test_scaling_builds_only_what_is_asked_for(
    only: list[str], rows: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
):
    from sdjepa.bench import runs

    built: list[int] = []
    monkeypatch.setattr(runs, "_stepper", lambda config, device: built.append(config.model.tokens))
    monkeypatch.setattr(runs, "_seconds", lambda *given, device: 0.5)
    *_, last = runs.scale(resident=[5], streamed=[7], small=True, only=only, tell=lambda line: None)
    assert [(r["tokens"], r["where"]) for r in last["timings"]] == rows
    assert built == sorted({tokens for tokens, _ in rows})
