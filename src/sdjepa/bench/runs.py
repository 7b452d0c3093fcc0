"""Does a fast run equal a slow one, and does its speed last when the data grow?

`agree` trains the same model on the same data in several ways and compares losses step by step: the
recorded step may differ from the eager one by what bf16 itself makes of float32, not by more.
`scale` times steps whose frames come from ever more data, held on the device or streamed to it.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdjepa.bench.train import FEW, chosen, lewm
from sdjepa.config import Config
from sdjepa.data.feed import Feed, Resident, Streamed
from sdjepa.data.loader import Batch
from sdjepa.model.world_model import build
from sdjepa.objectives.total import losses
from sdjepa.resolve import change, resolve
from sdjepa.seeds import stream
from sdjepa.train.loop import VALIDATION_BATCHES, Job, complete, prepare, take_step
from sdjepa.train.schedule import make_optimizer
from sdjepa.train.step import cut, look, make_stepper, numbers

WAYS = (("eager", "fp32"), ("eager", "bf16"), ("recorded", "bf16"))
PAIRS = (("eager bf16", "eager fp32"), ("recorded bf16", "eager bf16"))  # each with an earlier
ROWS = 128


def agree(
    data: Path, *, steps: int, settings: tuple[str, ...] = (), tell: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Losses of every way over `steps` steps and at the end on validation windows.

    What is known so far comes out after every way.
    """
    config = complete(resolve(settings=[f"data.path={data}", f"train.steps={steps}", *settings]))
    curves: dict[str, list[float]] = {}
    final: dict[str, float] = {}
    gaps: dict[str, dict[str, float]] = {}
    for engine, precision in WAYS:
        job = prepare(change(config, [f"train.engine={engine}", f"train.precision={precision}"]))
        job.model.train()
        name = f"{engine} {precision}"
        # Kept on the device until the end: a look at every loss would slow the fast way down.
        found = [take_step(job, step)[0]["loss"].detach().clone() for step in range(steps)]
        curves[name] = torch.stack(found).float().tolist()
        final[name] = _held_out(job)
        tell(f"{name:<16} last loss {curves[name][-1]:.5f}   validation {final[name]:.5f}")
        for one, other in PAIRS:
            if one == name:
                gap = _gap(curves[one], curves[other])
                gap["validation"] = abs(final[one] - final[other]) / abs(final[other])
                gaps[f"{one} - {other}"] = gap
                tell(
                    f"{one} against {other}: relative gap of a step's loss {gap['median']:.2e} "
                    f"(largest {gap['largest']:.2e}), of validation {gap['validation']:.2e}"
                )
        known = {"losses": curves, "validation": final, "relative_gaps": gaps}
        yield {"steps": steps} | {key: dict(value) for key, value in known.items()}


def _gap(one: list[float], other: list[float]) -> dict[str, float]:
    apart = np.abs(np.subtract(one, other)) / np.abs(other)
    return {"median": float(np.median(apart)), "largest": float(apart.max())}


@torch.no_grad()
def _held_out(job: Job) -> float:
    """Mean loss over validation batches, normalised by their own statistics.

    After so few steps BatchNorm's running averages lag behind the weights; in evaluation mode the
    loss would tell of the lag and of little else.
    """
    found = []
    for number in range(min(VALIDATION_BATCHES, job.validation.batches_per_epoch)):
        batch = cut(job.validation(number), job.config.data.window_frames)
        drawn = numbers(job.config, batch, step=-1 - number)
        found.append(float(losses(look(job.model, job.config, batch, drawn=drawn))["loss"]))
    return statistics.mean(found)


def scale(
    *,
    resident: list[int],
    streamed: list[int],
    small: bool,
    only: Sequence[str] = (),  # as `chosen` reads them
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Milliseconds a step with frames gathered from so many, here and on the host.

    What is known so far comes out after every row.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {"device": resident, "host": streamed}
    asked = chosen([_scaled(t, where) for t in (0, FEW) for where in counts], only)
    rows: list[dict[str, Any]] = []
    for tokens in (0, FEW):
        here, there = (n if _scaled(tokens, where) in asked else [] for where, n in counts.items())
        if not here and not there:
            continue
        config = lewm(device, small=small, tokens=tokens)
        take = _stepper(config, device)
        for feed, where, count in _feeds(here, there, config.model.image_size, device):
            seconds = _seconds(feed, take, count, device=device)
            del feed  # its frames, before the next are made: both may not fit
            rows.append({"tokens": tokens, "where": where, "frames": count, "seconds": seconds})
            tell(
                f"{_scaled(tokens, where):<27}{count:>9,} frames"
                f"{1000 * seconds:10.2f} ms a step"
                f"{1e6 * seconds / (4 * ROWS):8.2f} us a frame"
            )
            yield {"batch": ROWS, "timings": list(rows)}


def _scaled(tokens: int, where: str) -> str:
    return f"{tokens or 'all'} patches on the {where}"


def _stepper(config: Config, device: torch.device) -> Callable[[torch.Tensor, int], None]:
    model = build(config.model, seed=0).to(device).train()
    optimizer = make_optimizer(model, config.train)
    step_of = make_stepper(model, config, optimizer=optimizer, average=None)
    actions = torch.randn(ROWS, 4, 10, generator=stream(0, "bench")).to(device)
    episode = torch.arange(ROWS, device=device)
    times = torch.zeros(ROWS, 4, dtype=torch.int64, device=device)

    def take(frames: torch.Tensor, step: int) -> None:
        step_of(Batch(frames, actions, episode, times), step=step, rate=5e-5)

    return take


def _feeds(
    resident: list[int], streamed: list[int], size: int, device: torch.device
) -> Iterator[tuple[Feed, str, int]]:
    """Frames of noise: a thousand different ones, repeated, so that making them takes no time."""
    noise = torch.randint(
        0, 256, (1000, size, size, 3), generator=stream(0, "noise"), dtype=torch.uint8
    )
    for count in resident:
        frames = torch.empty(count, size, size, 3, dtype=torch.uint8, device=device)
        here = noise.to(device)
        for low in range(0, count, len(noise)):
            frames[low : low + len(noise)] = here[: count - low]
        yield Resident(frames), "device", count
        del frames
    for count in streamed:
        host = np.empty((count, size, size, 3), dtype=np.uint8)
        for low in range(0, count, len(noise)):
            host[low : low + len(noise)] = noise.numpy()[: count - low]
        yield Streamed(host, np.arange(count), device=device), "host", count
        del host


def _seconds(
    feed: Feed, take: Callable[[torch.Tensor, int], None], count: int, *, device: torch.device
) -> float:
    cuda = device.type == "cuda"
    rounds, each = (4, 25) if cuda else (2, 1)

    def places(step: int) -> torch.Tensor:
        generator = stream(0, "places", step)
        return torch.randint(count, (ROWS, 4), generator=generator).to(feed.gathers_on)

    spent = []
    for number in range(rounds):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for step in range(number * each, (number + 1) * each):
            take(feed(step, places), step)
        if cuda:
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - began) / each)
    return statistics.median(spent[1:])
