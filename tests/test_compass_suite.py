"""From a run directory to result files: what is encoded, what is held out, what is written."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import save_file

from sdjepa.compass import embedding, suite
from sdjepa.compass.published import published
from sdjepa.compass.reader import Reader, action_blocks, encode_rows
from sdjepa.compass.result import SAID, judge
from sdjepa.compass.trace import load, save
from sdjepa.config import Config
from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import write_pack
from sdjepa.errors import UserError
from sdjepa.model.world_model import build
from sdjepa.resolve import resolve
from sdjepa.runs import Run, write_json
from sdjepa.train.checkpoint import load_checkpoint
from small import SIZES, small_config, stir

ROWS, EPISODES, SIZE = 41, 100, SIZES["image_size"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A dot on a dark field, walking to a target; the test side has 5 of 100 episodes."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "dots.h5"
    start, end = rng.uniform(20, 200, (2, EPISODES, 1, 2))
    share = np.linspace(0, 1, ROWS)[None, :, None]
    place = (start + share * (end - start)).reshape(-1, 2)
    place += rng.normal(0, 2, place.shape)
    target = np.broadcast_to(end, (EPISODES, ROWS, 2)).reshape(-1, 2)
    grid = np.arange(SIZE) * 224 / SIZE
    dot = np.exp(-((grid[None, :] - place[:, :1]) ** 2) / 900)[:, None, :]
    dot = dot * np.exp(-((grid[None, :] - place[:, 1:]) ** 2) / 900)[:, :, None]
    frames = (255 * dot).astype(np.uint8)[..., None].repeat(3, axis=-1)
    with h5py.File(path, "w") as file:
        file["pixels"] = frames
        action = rng.normal(0.5, 2.0, (len(place), 2)).astype(np.float32)
        file["action"] = action
        file["proprio"] = place.astype(np.float32)
        file["pos_target"] = target.astype(np.float32)
        file["distance_to_target"] = np.linalg.norm(place - target, axis=-1).astype(np.float32)
        file["ep_len"] = np.full(EPISODES, ROWS)
        file["ep_offset"] = np.arange(EPISODES) * ROWS
    return path


def make_run(path: Path, data: Path, *, rung: str = "A2", settings: tuple[str, ...] = ()) -> Run:
    config = small_config(resolve(rung=rung, settings=[f"data.path={data}", *settings]))
    run = Run.create(path, config)
    model = build(config.model, seed=1)
    stir(model, std=0.1)
    folder = path / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors"
    )
    stats = Episodes.open(data).action_stats()
    write_json(folder / "config.json", config.model_dump())
    write_json(
        folder / "stats.json", {"action": {"mean": stats.mean.tolist(), "std": stats.std.tolist()}}
    )
    write_json(folder / "provenance.json", {"step": 7})
    return run


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "a2", data)


def traced(run: Run, data: Path, chosen: list[int], k: int = 2):
    checkpoint = load_checkpoint(run.path)
    with Episodes.open(data) as source:
        return checkpoint, suite.read_trace(checkpoint, source, chosen, k=k)


def test_every_diagnostic_writes_its_file_and_a_verdict(run, data, monkeypatch):
    monkeypatch.setattr(embedding, "POINTS", 60)  # a t-SNE of more takes seconds
    paths = suite.compass(run)
    assert [path.stem for path in paths] == list(suite.DIAGNOSTICS)
    held_out = set(Episodes.open(data).episode_ids("test").tolist())
    for path in paths:
        record = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
        assert record["diagnostic"] == path.stem
        assert record["verdict"].startswith(SAID[record["status"]])
        assert set(record["episodes"]) <= held_out
        assert record["split_hash"] == Episodes.open(data).split_hash
        assert Config.model_validate(record["config"]) == load_checkpoint(run.path).config
        assert record["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_results_depend_on_the_seed_alone(run, tmp_path, data):
    first = json.loads(suite.compass(run, only=["correlation"])[0].read_text())
    again = json.loads(suite.compass(run, only=["correlation"])[0].read_text())
    other = json.loads(suite.compass(run, only=["correlation"], seed=5)[0].read_text())
    assert first["nulls"] == again["nulls"]
    assert first["nulls"] != other["nulls"]


@pytest.mark.parametrize("split", ["fixed", "learned"])
def test_a_trace_is_what_the_model_itself_says(data, tmp_path, split):
    run = make_run(tmp_path / split, data, settings=(f"model.split={split}",))
    checkpoint, trace = traced(run, data, [3, 40])
    model, source = checkpoint.model, Episodes.open(data)
    if split == "learned":
        assert not torch.allclose(model.split.rotation(), torch.eye(SIZES["latent"]), atol=1e-3)
    for e in trace.episodes:
        rows = source.rows(e.index)
        with torch.no_grad():
            z = model.encode(torch.from_numpy(source.frames(range(rows.start, rows.stop)))[None])[0]
            parts = model.split(z)
            assert_allclose(e.progress, parts.progress, atol=2e-5)
            assert_allclose(e.content, parts.content, atol=2e-5)
            at = torch.from_numpy(e.step_rows)
            actions = torch.from_numpy(e.actions)
            t = 6
            guess = model.predict(z[at][None, t - 3 : t], actions[None, t - 3 : t])[0, -1]
            expected = torch.cat([model.split(guess).progress, model.split(guess).content], -1)
            assert_allclose(e.predicted[t - e.history], expected, atol=1e-4)
            path = model.rollout(z[at][None, 2:3], actions[None, :0], actions[None, 2:5])[0]
            expected = torch.cat([model.split(path).progress, model.split(path).content], -1)
            assert_allclose(e.rollouts[2, :3], expected, atol=1e-4)
        assert np.isnan(e.rollouts[-1, 1:]).all()
        assert np.isfinite(e.rollouts[-1, 0]).all()


def test_actions_are_normalised_blocks_and_the_missing_one_is_the_mean(data):
    source = Episodes.open(data)
    stats = source.action_stats()
    raw = source.column("action")[source.rows(0)]
    blocks = action_blocks(raw, frame_skip=5, mean=stats.mean, std=stats.std)
    assert blocks.shape == (ROWS // 5, 10)
    assert_allclose(blocks[2].reshape(5, 2), (raw[10:15] - stats.mean) / stats.std, rtol=1e-5)
    short = action_blocks(raw[-10:], frame_skip=5, mean=stats.mean, std=stats.std)
    assert (short[-1, -2:] == 0).all()
    assert abs(blocks.mean()) < 0.5  # the raw actions have mean 0.5 and would give more


def test_encoding_in_pieces_equals_encoding_at_once(data, run):
    checkpoint = load_checkpoint(run.path)
    reader, source = Reader(checkpoint.model), Episodes.open(data)
    rows = [source.rows(1), source.rows(8)]
    found = encode_rows(
        source.frames,
        rows,
        encode=reader.encode,
        batch=30,
    )
    for own, piece in zip(found, rows, strict=True):
        whole = reader.encode(source.frames(range(piece.start, piece.stop)))
        assert_allclose(own, whole, atol=2e-5)


def test_a_saved_trace_comes_back_unless_something_changed(run, data, tmp_path):
    _, trace = traced(run, data, [3, 40])
    save(trace, tmp_path / "t.npz", key="one")
    assert load(tmp_path / "t.npz", key="other") is None
    back = load(tmp_path / "t.npz", key="one")
    assert back is not None
    assert back.measure_names == trace.measure_names
    assert back.history == trace.history == back.episodes[0].history
    for left, right in zip(back.episodes, trace.episodes, strict=True):
        assert (left.latents == right.latents).all()
        assert (left.events["door"] == right.events["door"]).all()


def test_a_second_diagnostic_does_not_encode_again(run, monkeypatch):
    suite.compass(run, only=["course"])
    monkeypatch.setattr(Reader, "encode", lambda self, frames: pytest.fail("encoded again"))
    suite.compass(run, only=["correlation"])


def test_a_run_without_progress_part_is_read_as_a_stand_in_and_stands_beside(run, data, tmp_path):
    plain = make_run(tmp_path / "a0", data, rung="A0")
    record = json.loads(suite.compass(plain, only=["correlation"])[0].read_text())
    assert record["stand_in"] is True
    beside = json.loads(suite.compass(run, only=["probe"], against=plain.path)[0].read_text())
    assert beside["stand_in"] is False
    assert "against_first_k" in beside["results"]["per_episode"]
    own = beside["against"]["results"]["per_episode"]["progress"]["blocked"]["mean"]
    there = beside["results"]["per_episode"]["against_first_k"]["blocked"]["mean"]
    assert own == pytest.approx(there, rel=1e-3)


def test_a_teleport_lands_where_it_was_sent_and_keeps_the_goal(data, tmp_path):
    settings = ("plan.candidates=6", "plan.elites=3", "plan.iterations=1", "plan.horizon=2")
    settings += ("plan.replan=1", "score.offset=20", "score.budget=10")
    run = make_run(tmp_path / "t", data, settings=settings)
    record = json.loads(suite.compass(run, only=["teleport"])[0].read_text())
    results = record["results"]
    assert results["budget"] == 15
    checkpoint = load_checkpoint(run.path)
    moved = [path for path in results["teleported"]["paths"] if path["cut"] is not None]
    assert moved
    assert all(path["cut"] is None for path in results["left_alone"]["paths"])
    for path, alone in zip(
        results["teleported"]["paths"], results["left_alone"]["paths"], strict=True
    ):
        if path["cut"] is not None:
            # The first plan is the same in both; the frame after it is shown once more, moved.
            assert path["cut"] == checkpoint.config.data.frame_skip + 1
            assert_allclose(path["theta"][: path["cut"]], alone["theta"][: path["cut"]], atol=1e-4)
    count = len(results["teleported"]["jump_at_cut"])
    assert count == len(results["teleported"]["prediction_errors"]) == len(moved)


def test_wrong_requests_are_one_line(run, data, tmp_path):
    with pytest.raises(UserError, match=r"no diagnostic 'probes'; there are .*probe"):
        suite.compass(run, only=["probes"])
    with pytest.raises(UserError, match="no dataset"):
        suite.compass(run, data=tmp_path / "nothing")
    source = Episodes.open(data)
    pack = write_pack(source, [(0, 0)], tmp_path / "pack", offset=5, protocol="strict", seed=42)
    with pytest.raises(UserError, match=r"pack of tasks.*sdjepa collect"):
        suite.compass(run, data=pack)
    source.info["split"]["test"] = [1]
    with pytest.raises(UserError, match="--split train"):
        suite.choose(source, run.config, split="test", count=40, seed=0)
    source.info["split"]["train"] = [1]
    with pytest.raises(UserError, match=r"collect more$"):
        suite.choose(source, run.config, split="train", count=40, seed=0)


def test_training_episodes_are_read_only_when_asked(run, data):
    record = json.loads(
        suite.compass(run, only=["course"], split="train", episodes=4)[0].read_text()
    )
    assert record["split"] == "train"
    assert len(record["episodes"]) == 4
    assert set(record["episodes"]) <= set(Episodes.open(data).episode_ids("train").tolist())


def test_published_values_say_where_their_setting_differs():
    found = published("probe", "tworoom", config=Config(), episodes=40, split="test")
    assert found[0]["setting"]["env"] == "tworoom"
    assert found[0]["values"]["leave_one_out"]["progress"] == 0.717
    assert "k = 8, here 2" in found[0]["differs"]
    assert any("39 episodes" in text for text in found[0]["differs"])


def test_verdict_words():
    assert judge(effect=True, control=True) == "holds"
    assert judge(effect=True, control=False) == "only without the control"
    assert judge(effect=False, control=True) == "does not hold"
    assert judge(effect=None, control=True) == "not tested"
