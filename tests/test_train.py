"""Training: what is resumed equals what was never stopped, and failures say what to do next."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sdjepa.config import Config, Data
from sdjepa.data.episodes import Episodes
from sdjepa.data.loader import Loader, normalise_actions
from sdjepa.errors import Stopped, UserError
from sdjepa.model.world_model import WorldModel
from sdjepa.runs import Run
from sdjepa.train.checkpoint import load_checkpoint, load_weights
from sdjepa.train.loop import _measuring, prepare, take_step, train
from small import Crash, crash_at, foreign

UNTIMED = ("frames_per_second", "steps_per_second", "seconds")


def weights(run: Path) -> bytes:
    return (run / "checkpoints" / "latest" / "model.safetensors").read_bytes()


def logged(run: Path) -> list[dict[str, float]]:
    return [
        {key: value for key, value in record.items() if key not in UNTIMED}
        for record in Run(run).metrics()
    ]


@pytest.mark.parametrize("at", [1, 6, 11])
def test_resuming_after_a_crash_gives_the_same_losses_and_weights(
    at: int, tiny_config: Config, trained: Path, tmp_path: Path
):
    run = Run.create(tmp_path / "run", tiny_config)
    with pytest.raises(Crash):
        train(run, progress=crash_at(at))
    train(run, resume=True)
    assert weights(run.path) == weights(trained)
    assert logged(run.path) == logged(trained)


def test_two_runs_with_one_seed_are_equal_and_with_two_are_not(
    tiny_config: Config, trained: Path, tmp_path: Path
):
    other = tiny_config.model_copy(
        update={"train": tiny_config.train.model_copy(update={"seed": 7})}
    )
    for name, config in (("same", tiny_config), ("other", other)):
        train(Run.create(tmp_path / name, config))
    assert weights(tmp_path / "same") == weights(trained)
    assert weights(tmp_path / "other") != weights(trained)


@pytest.mark.slow
def test_kill_9_at_five_random_moments_leaves_the_final_weights_unchanged(
    tiny_config: Config, tmp_path: Path
):
    longer = {"steps": 400, "checkpoint_every": 15, "log_every": 5, "validate_every": 400}
    config = tiny_config.model_copy(update={"train": tiny_config.train.model_copy(update=longer)})
    whole = Run.create(tmp_path / "whole", config)
    run = Run.create(tmp_path / "killed", config)
    # The same number of threads everywhere: it decides in which order numbers are added.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def resume(one: Run) -> list[str]:
        return [sys.executable, "-m", "sdjepa", "train", "--resume", str(one.path)]

    subprocess.run(resume(whole), env=environment, check=True, capture_output=True)
    chance = random.Random(0)
    for _ in range(5):
        before = len(run.metrics())
        process = subprocess.Popen(resume(run), env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(run.metrics()) <= before:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.8))
        assert process.poll() is None, "the run ended before it could be killed five times"
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(resume(run), env=environment, check=True, capture_output=True)
    assert weights(run.path) == weights(whole.path)
    assert not list(run.path.rglob("*.partial")), "a kill left something half-written behind"


def test_a_training_in_the_background_does_not_hear_what_stops_the_foreground(
    tiny_config: Config, trained: Path, tmp_path: Path
):
    def stop_another(done: int, total: int, note: str = "") -> None:
        if total == 12 and done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does
    try:
        run = Run.create(tmp_path / "run", tiny_config)
        train(run, progress=stop_another)
    finally:
        signal.signal(signal.SIGINT, before)
    assert weights(run.path) == weights(trained)


def test_sigterm_leaves_a_run_that_resumes_to_the_same_weights(
    tiny_config: Config, trained: Path, tmp_path: Path
):
    def ask_to_stop(done: int, total: int, note: str = "") -> None:
        if total == 12 and done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    run = Run.create(tmp_path / "run", tiny_config)
    with pytest.raises(Stopped, match=r"stopped after step \d+ of 12; continue with"):
        train(run, progress=ask_to_stop)
    train(run, resume=True)
    assert weights(run.path) == weights(trained)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_last_good_checkpoint(
    tiny_config: Config, tmp_path: Path
):
    wild = tiny_config.train.model_copy(update={"learning_rate": 1e30, "clip": 1e30})
    run = Run.create(tmp_path / "run", tiny_config.model_copy(update={"train": wild}))
    with pytest.raises(UserError, match=r"is not finite at step .* train\.learning_rate"):
        train(run)
    for checkpoint in (run.path / "checkpoints").glob("step-*"):
        model = WorldModel(tiny_config.model)
        load_weights(model, checkpoint)
        assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_loaded_model_gives_the_outputs_of_the_saved_one(
    tiny_config: Config, tmp_path: Path, tiny_data: Path
):
    job = prepare(tiny_config)
    job.model.train()
    take_step(job, 3)
    from sdjepa.train.checkpoint import save_checkpoint

    run = Run.create(tmp_path / "run", tiny_config)
    save_checkpoint(
        run,
        job.model,
        optimizer=job.optimizer,
        average=None,
        config=tiny_config,
        stats=job.stats,
        step=4,
    )
    loaded = load_checkpoint(run.path)
    batch = job.train(0)
    job.model.eval()
    with torch.no_grad():
        latents = job.model.encode(batch.frames)
        assert torch.equal(loaded.model.encode(batch.frames), latents)
        expected = job.model.predict(latents[:, :3], batch.actions[:, :3])
        assert torch.equal(loaded.model.predict(latents[:, :3], batch.actions[:, :3]), expected)
    assert np.array_equal(loaded.stats.mean, job.stats.mean)


def test_a_checkpoint_of_another_shape_is_refused_before_anything_changes(
    trained: Path, tiny_config: Config
):
    wider = WorldModel(tiny_config.model.model_copy(update={"latent": 24}))
    before = {name: tensor.clone() for name, tensor in wider.state_dict().items()}
    with pytest.raises(UserError, match=r"does not fit this model: .* tensors differ"):
        load_weights(wider, trained / "checkpoints" / "latest")
    assert all(torch.equal(before[name], t) for name, t in wider.state_dict().items())


def test_a_truncated_checkpoint_is_one_line(a_run: Path):
    file = a_run / "checkpoints" / "latest" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(a_run)


def test_old_checkpoints_are_dropped_and_latest_is_the_last(trained: Path):
    kept = sorted(path.name for path in (trained / "checkpoints").glob("step-*"))
    assert kept == ["step-00000008", "step-00000012"]
    assert (trained / "checkpoints" / "latest").resolve().name == "step-00000012"


def make_loader(config: Config, *, batch: int = 8, seed: int = 1, **changes: object) -> Loader:
    data = Episodes.open(Path(config.data.path))
    return Loader(
        data,
        config.data.model_copy(update=changes),
        split="train",
        batch=batch,
        seed=seed,
        stats=data.action_stats(),
        device=torch.device("cpu"),
    )


def test_an_epoch_shows_every_window_at_most_once_and_another_epoch_in_another_order(
    tiny_config: Config,
):
    loader = make_loader(tiny_config)
    count = loader.batches_per_epoch
    first = torch.cat([loader.window_ids(step) for step in range(count)])
    second = torch.cat([loader.window_ids(step) for step in range(count, 2 * count)])
    assert len(first.unique()) == len(first) == count * 8
    assert not torch.equal(first, second)
    assert torch.equal(loader.window_ids(3), make_loader(tiny_config).window_ids(3))


@pytest.mark.parametrize("tail", ["ref", "full"])
def test_a_batch_holds_the_recorded_frames_and_normalised_action_blocks(
    tail: str, tiny_config: Config
):
    data = Episodes.open(Path(tiny_config.data.path))
    loader = make_loader(tiny_config, tail=tail)
    batch, ids = loader(2), loader.window_ids(2).numpy()
    stats, raw = data.action_stats(), data.column("action")
    for row, window in enumerate(ids):
        first = int(loader.windows.first_row[window])
        rows = first + 5 * np.arange(4)
        assert np.array_equal(batch.frames[row].numpy(), data.frames(rows))
        # Blocks 0..2 lead from frame to frame and lie inside the episode.
        expected = normalise_actions(raw[first : first + 15], stats).reshape(3, -1)
        assert np.array_equal(batch.actions[row, :3].numpy(), expected)
        assert np.array_equal(batch.step[row].numpy(), data.column("step_idx")[rows].ravel())
        assert (data.column("episode_idx")[rows].ravel() == int(batch.episode[row])).all()
    assert torch.isfinite(batch.actions).all()


def test_a_run_directory_is_not_overwritten(trained: Path, tiny_config: Config):
    before = (trained / "config.toml").read_bytes()
    with pytest.raises(UserError, match=r"already holds a run\. Continue it with"):
        Run.create(trained, tiny_config)
    assert (trained / "config.toml").read_bytes() == before


def test_the_manifest_names_a_gpu_that_is_in_use_only_once_training_began(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = Run.create(tmp_path / "run", tiny_config)
    made = json.loads((run.path / "manifest.json").read_text())
    monkeypatch.setattr("sdjepa.runs._gpu", lambda: ", a GPU")
    with pytest.raises(Crash):
        train(run, progress=crash_at(1))
    begun = json.loads((run.path / "manifest.json").read_text())
    assert begun.pop("data")["num_episodes"] == 20
    assert begun == made | {"machine": made["machine"] + ", a GPU"}


def test_metrics_survive_a_line_cut_short(a_run: Path):
    whole = Run(a_run).metrics()
    with (a_run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": 0.')
    assert Run(a_run).metrics() == whole
    Run(a_run).rewind_metrics(8)
    assert [r["step"] for r in Run(a_run).metrics()] == list(range(1, 9))
    assert json.loads((a_run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 8


def test_a_full_disk_is_one_line_and_keeps_the_previous_checkpoint(
    a_run: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
):
    import sdjepa.train.checkpoint as checkpoint

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job = prepare(tiny_config)
    before = weights(a_run)
    monkeypatch.setattr(checkpoint, "save_file", no_space)
    with pytest.raises(UserError, match=r"could not write the checkpoint of step 99.*--resume"):
        checkpoint.save_checkpoint(
            Run(a_run),
            job.model,
            optimizer=job.optimizer,
            average=None,
            config=tiny_config,
            stats=job.stats,
            step=99,
        )
    assert weights(a_run) == before
    assert not list((a_run / "checkpoints").glob(".*partial"))
    shutil.rmtree(a_run)


@pytest.mark.parametrize(("rows", "frames"), [(20, 4), (25, 5), (29, 5), (30, 6), (90, 6)])
def test_validation_windows_are_as_long_as_its_episodes_let_them_be(tmp_path, rows, frames):
    """Another program's short episodes are validated on, if only for fewer blocks."""
    with Episodes.open(foreign(tmp_path / "a.h5", lengths=(rows,) * 4)) as data:
        assert _measuring(Data(), data).window_frames == frames
