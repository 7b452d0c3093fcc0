"""Rung A0 is LeWM: stable-worldmodel's own object and ours agree; weights travel bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from sdjepa.config import Model, Objectives
from sdjepa.data.episodes import ActionStats
from sdjepa.errors import UserError
from sdjepa.interop.lewm import export_lewm, import_lewm
from sdjepa.interop.lewm_keys import from_lewm, lewm_config, places, to_lewm
from sdjepa.interop.lewm_peer import instantiate
from sdjepa.model.world_model import WorldModel, count_parameters
from sdjepa.objectives.total import draws, extent, losses, observe
from sdjepa.resolve import resolve
from sdjepa.runs import Run
from sdjepa.seeds import derive, stream
from sdjepa.train.checkpoint import load_checkpoint
from small import SIZES, noise, random_batch, small_model, stir

TOLERANCE = {"atol": 1e-5, "rtol": 0}
STATS = ActionStats(mean=np.array([0.5, -1.0]), std=np.array([2.0, 0.25]))
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def normalised(frames: Tensor) -> Tensor:
    """Pixels as stable-worldmodel's transform hands them to LeWM: channels first."""
    return ((frames.float() / 255 - MEAN) / STD).movedim(-1, -3)


def save_lewm(model: WorldModel, folder: Path, *, keys: str = "new", prefix: str = "") -> Path:
    """A folder as stable-worldmodel's save_pretrained leaves it."""
    folder.mkdir(parents=True)
    named = {prefix + name: value for name, value in to_lewm(model, keys=keys).items()}
    torch.save(named, folder / "weights.pt")
    (folder / "config.json").write_text(json.dumps(lewm_config(model.config)))
    return folder


def plain(**changes: object) -> WorldModel:
    model = small_model(k=0, **changes)
    generator = stream(0, "buffers")
    for name, buffer in model.named_buffers():  # running statistics must travel too
        if "running" in name:
            buffer += torch.rand(buffer.shape, generator=generator)
        elif "tracked" in name:
            buffer += 7
    return model


# --- against their class


@pytest.fixture(scope="module", name="pair")
def _pair() -> tuple[WorldModel, torch.nn.Module]:
    """Ours and theirs at the paper's size with the same weights, every gate open; no dropout."""
    pytest.importorskip("stable_worldmodel")
    pytest.importorskip("transformers")
    shape = Model(k=0, action_dim=2, frame_skip=5, dropout=0.0)
    ours = WorldModel(shape)
    stir(ours, std=0.02)
    theirs = instantiate(lewm_config(shape))
    theirs.load_state_dict(to_lewm(ours), strict=True)
    return ours, theirs


def windows() -> dict[str, Tensor]:
    return random_batch(2, 4, size=224)


def test_their_object_has_the_same_parameters(pair: tuple[WorldModel, torch.nn.Module]):
    ours, theirs = pair
    assert type(theirs).__module__ == "stable_worldmodel.wm.lewm.lewm"
    assert count_parameters(theirs) == count_parameters(ours) == 18_034_478


@torch.no_grad()
def test_latents_and_predictions_agree(pair: tuple[WorldModel, torch.nn.Module]):
    ours, theirs = (model.eval() for model in pair)
    batch = windows()
    info = theirs.encode({"pixels": normalised(batch["frames"]), "action": batch["actions"]})
    latents = ours.encode(batch["frames"])
    assert latents.std() > 0.01
    assert_close(latents, info["emb"], **TOLERANCE)
    assert_close(ours.embed_actions(batch["actions"]), info["act_emb"], **TOLERANCE)
    assert_close(
        ours.predict(latents[:, :3], batch["actions"][:, :3]),
        theirs.predict(info["emb"][:, :3], info["act_emb"][:, :3]),
        **TOLERANCE,
    )


@torch.no_grad()
def test_rollouts_agree_beyond_the_history(pair: tuple[WorldModel, torch.nn.Module]):
    ours, theirs = (model.eval() for model in pair)
    frame = windows()["frames"][:1, :1]
    candidates = noise(1, 6, 5, 10)
    pixels = normalised(frame)[:, None].expand(1, 6, 1, 3, 224, 224)
    info = theirs.rollout({"pixels": pixels}, candidates)
    start = ours.encode(frame).expand(6, 1, 192)
    reached = ours.rollout(start, candidates[0, :, :0], candidates[0])
    assert info["predicted_emb"].shape == (1, 6, 6, 192)  # one observed and five predicted
    assert_close(start, info["predicted_emb"][0, :, :1], **TOLERANCE)
    assert_close(reached, info["predicted_emb"][0, :, 1:], **TOLERANCE)


def test_loss_gradients_and_running_statistics_agree(pair: tuple[WorldModel, torch.nn.Module]):
    from stable_worldmodel.wm import loss as loss_module

    ours, theirs = (model.train() for model in pair)
    batch = windows()
    settings = resolve(rung="A0").objectives
    of = extent(ours.config, rows=len(batch["frames"]), time=4)
    drawn = draws(settings, of, seed=3, step=0, device=torch.device("cpu"))
    scene = observe(ours, settings, **batch, drawn=drawn)
    found = losses(scene)
    info = theirs.encode({"pixels": normalised(batch["frames"]), "action": batch["actions"]})
    emb = info["emb"]
    prediction = (theirs.predict(emb[:, :3], info["act_emb"][:, :3]) - emb[:, 1:]).square().mean()
    torch.manual_seed(derive(3, "sigreg", 0))  # the stream ours draws its directions from
    sigreg = loss_module.SIGReg(knots=17, num_proj=1024)(emb.transpose(0, 1))
    assert_close(found["prediction"], prediction, **TOLERANCE)
    assert_close(found["sigreg"], sigreg, **TOLERANCE)
    total = prediction + 0.09 * sigreg
    assert_close(found["loss"], total, **TOLERANCE)
    found["loss"].backward()
    total.backward()
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    for place in places(ours, "new"):
        if place.ours in dict(ours.named_parameters()):
            joined = torch.cat([grads[name].flatten() for name in place.theirs])
            own = ours.get_parameter(place.ours).grad
            assert_close(own.flatten(), joined, atol=1e-5, rtol=1e-3, msg=place.ours)
    running = {name: value for name, value in theirs.state_dict().items() if "running" in name}
    for name, value in to_lewm(ours).items():
        if "running" in name:
            assert_close(value, running[name], **TOLERANCE)


def test_an_exported_folder_builds_their_object_and_computes_the_same(
    pair: tuple[WorldModel, torch.nn.Module], tmp_path: Path
):
    del pair  # only so that their package is known to be there
    model = plain().eval()
    run = import_lewm(save_lewm(model, tmp_path / "swm"), tmp_path / "run", stats=STATS)
    out = export_lewm(run, tmp_path / "back")
    theirs = instantiate(json.loads((out / "config.json").read_text())).eval()
    theirs.load_state_dict(torch.load(out / "weights.pt", weights_only=True), strict=True)
    frames = random_batch(2, 3)["frames"]
    with torch.no_grad():
        latents = theirs.encode({"pixels": normalised(frames)})["emb"]
        assert_close(model.encode(frames), latents, **TOLERANCE)


# --- weights that travel


@pytest.mark.parametrize("keys", ["old", "new"])
@pytest.mark.parametrize(
    "changes", [{}, {"predictor_width": 24}, {"action_dim": 5, "action_width": "block"}]
)
def test_round_trip_is_bit_exact(keys: str, changes: dict[str, object], tmp_path: Path):
    model = plain(**changes)
    first = save_lewm(model, tmp_path / "first", keys=keys)
    run = import_lewm(first, tmp_path / "run")
    out = export_lewm(run, tmp_path / "second", keys=keys)
    before = torch.load(first / "weights.pt", weights_only=True)
    after = torch.load(out / "weights.pt", weights_only=True)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype
        assert torch.equal(value, after[name]), name
    assert (first / "config.json").read_text().split() == (
        json.dumps(json.loads((out / "config.json").read_text()))
    ).split()


def test_an_imported_run_is_a_run_and_gives_the_same_latents(tmp_path: Path):
    model = plain().eval()
    out = import_lewm(save_lewm(model, tmp_path / "swm"), tmp_path / "run", stats=STATS)
    config = Run.open(out).config
    assert (config.rung, config.plan.cost, config.model.k) == ("A0", "full", 0)
    assert config.model == model.config
    loaded = load_checkpoint(out)
    assert loaded.step == 0
    assert loaded.stats.std.tolist() == [2.0, 0.25]
    frames = random_batch(2, 2)["frames"]
    assert torch.equal(loaded.model.encode(frames), model.encode(frames))


def test_statistics_are_found_beside_the_weights(tmp_path: Path):
    run = import_lewm(save_lewm(plain(), tmp_path / "a"), tmp_path / "run", stats=STATS)
    again = import_lewm(export_lewm(run, tmp_path / "b"), tmp_path / "again")
    assert load_checkpoint(again).stats.mean.tolist() == [0.5, -1.0]
    wrong = ActionStats(mean=np.zeros(3), std=np.ones(3))
    with pytest.raises(UserError, match="3 dimensions"):
        import_lewm(tmp_path / "a", tmp_path / "c", stats=wrong)


def as_safetensors(tensors: dict[str, Tensor], folder: Path) -> Path:
    save_file(tensors, folder / "whole.safetensors")
    return folder / "whole.safetensors"


def as_pth(tensors: dict[str, Tensor], folder: Path) -> Path:
    torch.save(tensors, folder / "whole.pth")
    return folder / "whole.pth"


def as_lightning(tensors: dict[str, Tensor], folder: Path) -> Path:
    torch.save({"state_dict": tensors, "epoch": 9}, folder / "whole.ckpt")
    return folder / "whole.ckpt"


@pytest.mark.parametrize("write", [as_safetensors, as_pth, as_lightning])
def test_a_whole_training_module_is_read_from_its_state_dict(
    write: Callable[[dict[str, Tensor], Path], Path], tmp_path: Path
):
    """A prefix before every weight, and the regulariser's constants beside them; no config.json."""
    model = plain(encoder_width=192, predictor_heads=2, predictor_head_dim=64)
    tensors = {f"model.{name}": value for name, value in to_lewm(model, keys="old").items()}
    tensors |= {f"sigreg.{name}": torch.zeros(17) for name in ("t", "phi", "weights")}
    run = import_lewm(write(tensors, tmp_path), tmp_path / "run")
    found = load_file(run / "checkpoints" / "latest" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    origin = json.loads((run / "checkpoints" / "latest" / "provenance.json").read_text())
    assert origin["imported"]["left_behind"] == ["sigreg.phi", "sigreg.t", "sigreg.weights"]


def test_the_published_description_gives_the_head_counts(tmp_path: Path):
    model = plain(encoder_width=192, predictor_heads=4, predictor_head_dim=16)
    folder = save_lewm(model, tmp_path / "swm", keys="old")
    tree = json.loads((folder / "config.json").read_text())
    tree["encoder"] = {"_target_": "vit", "size": "tiny", "patch_size": 14}
    (folder / "config.json").write_text(json.dumps({"model": tree, "seed": 1}))
    shape = Run.open(import_lewm(folder, tmp_path / "run")).config.model
    assert (shape.encoder_heads, shape.predictor_heads, shape.predictor_head_dim) == (3, 4, 16)


# --- what is refused


def broken(change: Callable[[dict[str, Tensor]], object], folder: Path) -> Path:
    save_lewm(plain(), folder)
    tensors = torch.load(folder / "weights.pt", weights_only=True)
    change(tensors)
    torch.save(tensors, folder / "weights.pt")
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.pop("projector.net.1.running_mean"),
            "missing: projector.net.1.running_mean",
        ),
        (lambda t: t.update({"encoder.pooler.bias": torch.zeros(3)}), "unknown: encoder.pooler"),
        (
            lambda t: t.update({"pred_proj.net.0.bias": torch.zeros(3)}),
            r"other shape: pred_proj.net.0.bias \(3,\) instead of \(32,\)",
        ),
        (lambda t: t.pop("predictor.pos_embedding"), "0 LeWM predictors"),
        (lambda t: t.pop("projector.net.3.weight"), "lacks projector.net.3.weight"),
        (
            lambda t: [t.pop(name) for name in list(t) if name.startswith("encoder.layers.")],
            "no encoder with the names",
        ),
    ],
)
def test_a_half_match_is_refused_with_its_names_and_leaves_nothing(
    change: Callable[[dict[str, Tensor]], object], said: str, tmp_path: Path
):
    folder = broken(change, tmp_path / "swm")
    with pytest.raises(UserError, match=said) as caught:
        import_lewm(folder, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["swm"]


class Trap:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return Path.touch, (Path("sprung"),)  # type: ignore[return-value]


def test_a_pickled_object_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Trap()}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match=r"save the tensors alone"):
        import_lewm(tmp_path / "weights.pt", tmp_path / "run")
    assert not (tmp_path / "sprung").exists()


def test_files_that_are_no_weights_are_said_in_one_line(tmp_path: Path):
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(UserError, match="damaged"):
        import_lewm(tmp_path / "cut.safetensors", tmp_path / "run")
    with pytest.raises(UserError, match="no state dict"):
        import_lewm(tmp_path / "list.pt", tmp_path / "run")
    with pytest.raises(UserError, match=r"found cut\.safetensors, list\.pt; name the file"):
        import_lewm(tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match="does not exist"):
        import_lewm(tmp_path / "nowhere", tmp_path / "run")


def test_unsaid_heads_of_an_odd_width_are_asked_for(tmp_path: Path):
    folder = save_lewm(plain(), tmp_path / "swm")
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="how many heads its encoder has"):
        import_lewm(folder, tmp_path / "run")


def test_nothing_is_overwritten(tmp_path: Path):
    folder = save_lewm(plain(), tmp_path / "swm")
    run = import_lewm(folder, tmp_path / "run")
    with pytest.raises(UserError, match="already exists"):
        import_lewm(folder, run)
    with pytest.raises(UserError, match="not empty"):
        export_lewm(run, folder)


def checkpoint_of(model: WorldModel, run: Path) -> Path:
    folder = run / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = resolve(rung="A2").model_dump() | {"model": model.config.model_dump()}
    (folder / "config.json").write_text(json.dumps(config))
    return run


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"polar": "ref"}, "model.polar"), ({"split": "learned"}, "model.split = learned")],
)
def test_what_lewm_cannot_hold_is_refused(changes: dict[str, object], said: str, tmp_path: Path):
    run = checkpoint_of(small_model(k=4, **changes), tmp_path / "run")
    with pytest.raises(UserError, match=said):
        export_lewm(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_fixed_split_is_exported_because_it_has_no_weights(tmp_path: Path):
    model = small_model(k=4)
    out = export_lewm(checkpoint_of(model, tmp_path / "run"), tmp_path / "out")
    again = WorldModel(Model.model_validate(SIZES | {"k": 0}))
    from_lewm(again, torch.load(out / "weights.pt", weights_only=True), keys="new")
    frames = random_batch(1, 2)["frames"]
    assert torch.equal(again.eval().encode(frames), model.eval().encode(frames))


def test_settings_of_a0_are_lewms():
    assert {
        name: value
        for name, value in resolve(rung="A0").objectives.model_dump().items()
        if name.endswith("_weight") and value
    } == {"prediction_weight": 1.0, "sigreg_weight": 0.09}
    assert Objectives().sigreg_directions == 1024
