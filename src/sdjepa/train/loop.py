"""Losses to checkpoint, in one scroll: build, resume, step, log, validate, save.

Every random draw of a step is a function of (seed, step), so a run that is killed and resumed gives
the weights of one that never stopped, to the last bit on the CPU. `torchrun` makes it many.
"""

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from sdjepa import ranks
from sdjepa.config import Config, Data
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.data.feed import Feed
from sdjepa.data.frames import background
from sdjepa.data.loader import Batch, Loader, find_windows
from sdjepa.data.patches import Reading
from sdjepa.data.windows import rows_needed
from sdjepa.errors import Stopped, UserError
from sdjepa.model.world_model import WorldModel, build
from sdjepa.objectives.total import Scene, losses, weights
from sdjepa.runs import Progress, Run, silent
from sdjepa.train.arithmetic import Pace
from sdjepa.train.average import Average
from sdjepa.train.checkpoint import find_checkpoint, restore, save_checkpoint
from sdjepa.train.monitor import gradient_cosines, latent_health, rollout_errors, token_cover
from sdjepa.train.schedule import learning_rate, make_optimizer
from sdjepa.train.source import describe
from sdjepa.train.step import Stepper, cut, look, make_stepper, numbers
from sdjepa.train.trackers import Trackers

VALIDATION_BATCHES = 8
VALIDATION_FRAMES = 6  # room for a five-block rollout; losses look at the training window's length


@dataclass(frozen=True)
class Job:
    """What stays the same from the first step to the last."""

    config: Config
    model: WorldModel
    optimizer: torch.optim.Optimizer
    average: Average | None
    stepper: Stepper
    train: Loader
    validation: Loader
    stats: ActionStats
    steps: int
    device: torch.device


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU of this rank when there is one."""
    if name != "auto":
        return torch.device(name)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # LOCAL_RANK, not the rank among all: each machine counts its GPUs from 0.
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def complete(config: Config) -> Config:
    """The configuration with what only the dataset knows, checked against it."""
    model = config.model
    data = Episodes.open(Path(config.data.path), size=model.image_size)
    if model.image_size != data.image_size:
        patch = min(model.patch, max(1, data.image_size // 4))
        fits = f"--set model.image_size={data.image_size // patch * patch}"
        if patch != model.patch:
            fits += f" --set model.patch={patch}"
        raise UserError(
            f"{data.path} has {data.image_size} px frames, model.image_size is {model.image_size}; "
            f"collect with --size {model.image_size} or add {fits}"
        )
    if model.action_dim not in (0, data.action_dim):
        raise UserError(
            f"{data.path} has {data.action_dim}-d actions, model.action_dim is {model.action_dim}"
        )
    longer = _measuring(config.data, data)
    find_windows(data, longer, split="validation", batch=config.train.batch)
    find_windows(data, config.data, split="train", batch=config.train.batch)
    known = {"action_dim": data.action_dim, "frame_skip": config.data.frame_skip}
    return config.model_copy(update={"model": model.model_copy(update=known)})


def _measuring(settings: Data, data: Episodes) -> Data:
    """Validation windows are longer where an episode is: predictions are followed for several
    blocks."""
    longest = int(data.lengths[data.episode_ids("validation")].max(initial=0))
    frames = max(VALIDATION_FRAMES, settings.window_frames)
    while frames > settings.window_frames and longest < rows_needed(
        frames, frame_skip=settings.frame_skip, tail=settings.tail
    ):
        frames -= 1
    return settings.model_copy(update={"window_frames": frames})


def prepare(
    config: Config, *, feeds: dict[str, Feed] | None = None, progress: Progress = silent
) -> Job:
    """Model, optimiser and data of a run, before any checkpoint is looked at.

    Frames come from `feeds` where another run on the same data has left them there.
    """
    feeds = {} if feeds is None else feeds
    weights(config.objectives)
    device = pick_device(config.train.device)
    ranks.start(device)
    data = Episodes.open(Path(config.data.path), size=config.model.image_size)
    stats = data.action_stats()
    model = build(config.model, seed=config.train.seed).to(device)
    reading = None
    if config.model.tokens:
        still = torch.from_numpy(background(data))
        model.encoder.background.copy_(still)
        reading = Reading(still, patch=config.model.patch, kept=config.model.tokens)
    shared = {"seed": config.train.seed, "stats": stats, "device": device, "progress": progress}
    train = Loader(
        data,
        config.data,
        split="train",
        batch=config.train.batch,
        reading=reading,
        feed=feeds.get("train"),
        **shared,
    )
    # Whole frames: what the model does not read is counted on them.
    validation = Loader(
        data,
        _measuring(config.data, data),
        split="validation",
        batch=config.train.batch,
        feed=feeds.get("validation"),
        **shared,
    )
    feeds |= {"train": train.feed, "validation": validation.feed}
    optimizer = make_optimizer(model, config.train)
    average = Average(model, decay=config.train.ema) if config.train.ema else None
    return Job(
        config=config,
        model=model,
        optimizer=optimizer,
        average=average,
        stepper=make_stepper(model, config, optimizer=optimizer, average=average),
        train=train,
        validation=validation,
        stats=stats,
        steps=config.train.steps or config.train.epochs * train.batches_per_epoch,
        device=device,
    )


def take_step(job: Job, step: int) -> tuple[dict[str, torch.Tensor], Scene]:
    """One optimiser step; returns the terms (still on the device) and what they were made of."""
    settings = job.config.train
    rate = learning_rate(
        step, job.steps, peak=settings.learning_rate, warmup_share=settings.warmup_share
    )
    batch = job.train(step)
    conflicts = _conflicts(job, batch, step) if _diagnoses(job, step) else {}
    outcome = job.stepper(batch, step=step, rate=rate)
    return outcome.terms | conflicts, outcome.scene


def _diagnoses(job: Job, step: int) -> bool:
    every = job.config.train.diagnose_every
    return bool(every) and step % every == 0


def _conflicts(job: Job, batch: Batch, step: int) -> dict[str, torch.Tensor]:
    """Cosines between the gradients of the terms, before the step; leaves the model as it was."""
    kept = [(buffer, buffer.clone()) for buffer in job.model.buffers()]
    drawn = numbers(job.config, batch, step=step)
    found = gradient_cosines(look(job.model, job.config, batch, drawn=drawn))
    for buffer, value in kept:
        buffer.copy_(value)
    return found


@torch.no_grad()
def validate(job: Job) -> dict[str, float]:
    """Mean terms over the first validation batches, in eval mode, and rollout errors.

    Of the averaged weights where there is an average: they are what will be used.
    """
    sums: dict[str, float] = {}
    count = min(VALIDATION_BATCHES, job.validation.batches_per_epoch)
    with job.average.instead(job.model) if job.average else nullcontext():
        job.model.eval()
        for number in range(count):
            longer = job.validation(number)
            batch = cut(longer, job.config.data.window_frames)
            drawn = numbers(job.config, batch, step=-1 - number)
            terms = losses(look(job.model, job.config, batch, drawn=drawn))
            values = {f"validation_{name}": float(term) for name, term in terms.items()}
            values |= rollout_errors(job.model, longer) | token_cover(job.model, batch)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value / count
    job.model.train()
    return sums


class _Stop:
    """Turns SIGTERM and Ctrl-C into a wish that the loop grants between two steps."""

    def __init__(self) -> None:
        self.wished = False

    def __enter__(self) -> "_Stop":
        # A shell has what it starts in the background ignore Ctrl-C.
        both = (signal.SIGTERM, signal.SIGINT)
        heard = [s for s in both if signal.getsignal(s) is not signal.SIG_IGN]
        self._before = {s: signal.signal(s, self._wish) for s in heard}
        return self

    def _wish(self, number: int, frame: FrameType | None) -> None:
        self.wished = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _agreed(job: Job, stop: _Stop, done: int) -> bool:
    """Whether to stop here. Several processes ask each other, where they talk anyway."""
    if ranks.world_size() == 1:
        return stop.wished
    if done % job.config.train.log_every:
        return False
    wishes = torch.tensor(float(stop.wished), device=job.device)
    return bool(ranks.total(wishes) > 0)


def train(
    run: Run,
    *,
    resume: bool = False,
    feeds: dict[str, Feed] | None = None,
    progress: Progress = silent,
) -> Path:
    """Train `run` to its last step; returns the final checkpoint."""
    began = time.monotonic()
    config = run.config
    job = prepare(config, feeds=feeds, progress=progress)
    leader = ranks.rank() == 0
    start = 0
    if resume and (run.path / "checkpoints" / "latest").exists():
        found = find_checkpoint(run.path)
        start = restore(job.model, job.optimizer, average=job.average, checkpoint=found)
    if leader:
        run.rewind_metrics(start)
        run.note(data=describe(Path(config.data.path)))
    before = run.metrics()[-1].get("seconds", 0.0) if start and run.metrics() else 0.0
    trackers = Trackers(config.train.trackers if leader else (), run)
    job.model.train()
    shared = {"optimizer": job.optimizer, "average": job.average}
    shared |= {"config": config, "stats": job.stats}
    saved = run.path / "checkpoints" / f"step-{start:08d}"
    pace = Pace(config, device=job.device, step=start)
    with _Stop() as stop:
        for step in range(start, job.steps):
            terms, scene = take_step(job, step)
            done = step + 1
            stopped = _agreed(job, stop, done)
            last = done == job.steps or stopped
            if done % config.train.log_every == 0 or last or _diagnoses(job, step):
                record = _record(job, terms, scene=scene, step=step, saved=saved)
                record |= pace(done)
                if done % config.train.validate_every == 0 or done == job.steps:
                    record |= validate(job)
                record["seconds"] = before + time.monotonic() - began
                if leader:
                    run.append_metrics(record)
                    trackers.log(record, step=done)
                progress(done, job.steps, pace.words(record))
                pace.restart(done)
            else:
                progress(done, job.steps)
            if done % config.train.checkpoint_every == 0 or last:
                if leader:
                    saved = save_checkpoint(run, job.model, step=done, **shared)
                ranks.wait()
                pace.restart(done)
            if stopped and done < job.steps:
                trackers.close()
                raise Stopped(
                    f"stopped after step {done} of {job.steps}; continue with: "
                    f"sdjepa train --resume {run.path}"
                )
    trackers.close()
    return find_checkpoint(run.path)


def _record(
    job: Job, terms: dict[str, torch.Tensor], *, scene: Scene, step: int, saved: Path
) -> dict[str, float]:
    """The numbers of a logged step; a loss that is not finite stops the run before it is saved."""
    values = torch.stack([term.detach().float() for term in terms.values()])
    values = ranks.total(values) / ranks.world_size()
    record = {"step": step + 1} | dict(zip(terms, values.tolist(), strict=True))
    bad = [name for name, value in record.items() if value != value or abs(value) == float("inf")]
    if bad:
        last = f"the last good checkpoint is {saved}" if saved.exists() else "no checkpoint yet"
        raise UserError(
            f"{bad[0]} is not finite at step {step + 1}; {last}. "
            f"Lower train.learning_rate (now {job.config.train.learning_rate})"
        )
    record["learning_rate"] = float(job.optimizer.param_groups[0]["lr"])
    return record | latent_health(scene)
