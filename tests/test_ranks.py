"""Two processes with half the batch each compute what one process computes on the whole batch.

This file is also the program the two processes run.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sdjepa import ranks
from sdjepa.config import Config, Objectives
from sdjepa.objectives.total import TERMS, losses
from sdjepa.resolve import change
from sdjepa.runs import Run
from sdjepa.train.checkpoint import load_checkpoint
from sdjepa.train.loop import train
from sdjepa.train.monitor import gradient_cosines
from small import Crash, crash_at, noise, random_batch, scene_of, small_model

EVERYTHING = {f"{term}_weight": 0.1 for term in TERMS}
CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "everything, ref sampler": EVERYTHING | {"triplet_radius": 2},
    "everything, paper sampler": EVERYTHING | {"triplet_sampler": "paper"},
    "full latent": {"triplet_on": "full", "triplet_sampler": "paper", "triplet_other_share": 1.0},
}
WORLD = 2


def outcome(settings: Objectives) -> dict[str, Tensor]:
    """Terms, gradients and BatchNorm statistics of a step on this rank's share of the batch."""
    head = settings.progress_head_weight > 0
    model = small_model(k=4, dropout=0.0, polar="ref", split="learned", progress_head=head).train()
    batch = random_batch(8)
    batch["step"][4:] += 100  # every frame near an episode's start is on the first rank
    share = 8 // ranks.world_size()
    mine = slice(ranks.rank() * share, (ranks.rank() + 1) * share)
    scene = scene_of(model, settings, {name: part[mine] for name, part in batch.items()})
    terms = losses(scene)
    terms |= gradient_cosines(scene)
    terms["loss"].backward()
    ranks.average_gradients(model)
    found = {
        f"term {name}": ranks.total(value.detach()) / ranks.world_size()
        for name, value in terms.items()
    }
    found |= {f"gradient {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found | {f"buffer {n}": b for n, b in model.named_buffers() if "pixel" not in n}


def collectives() -> dict[str, Tensor]:
    """Gradients of `total` and `gather` on this rank's numbers, for losses known by hand."""
    x = (torch.arange(3.0) + 10 * ranks.rank()).requires_grad_()
    (ranks.total(x.square()).prod()).backward()
    y = (torch.arange(3.0) + 10 * ranks.rank()).requires_grad_()
    weights = torch.arange(3.0 * ranks.world_size()) * (1 + ranks.rank())
    gathered = ranks.gather(y)
    (gathered * weights).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    return {"total": x.grad, "gather": y.grad, "gathered": gathered.detach()}


def main(folder: Path) -> None:
    assert ranks.start(torch.device("cpu"))
    results = {name: outcome(Objectives.model_validate(case)) for name, case in CASES.items()}
    results["collectives"] = collectives()
    torch.save(results, folder / f"rank{ranks.rank()}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", name="both")
def _both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(WORLD):
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, str(folder)]
        workers.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=120)
            assert worker.returncode == 0, errors
    finally:
        for worker in workers:
            worker.kill()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_one_processs_terms_gradients_and_statistics(
    case: str, both: list[dict[str, dict[str, Tensor]]]
):
    alone = outcome(Objectives.model_validate(CASES[case]))
    for together in both:
        found = together[case]
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert_close(
                found[name], value, atol=2e-6, rtol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_the_comparison_has_teeth(both: list[dict[str, dict[str, Tensor]]]):
    """What each process would compute alone on its half is something else."""
    alone = outcome(Objectives())
    half = small_model(k=4, dropout=0.0, polar="ref", split="learned").train()
    batch = {name: part[:4] for name, part in random_batch(8).items()}
    terms = losses(scene_of(half, Objectives(), batch))
    terms["loss"].backward()
    grad = half.get_parameter("encoder.embed.weight").grad
    assert not torch.allclose(grad, alone["gradient encoder.embed.weight"], rtol=1e-2)
    assert not torch.allclose(terms["sigreg"], both[0]["plain"]["term sigreg"], rtol=1e-2)
    running = half.get_buffer("projector.norm.running_var")
    assert not torch.allclose(running, both[0]["plain"]["buffer projector.norm.running_var"])


def test_collectives_have_the_gradients_of_the_joined_numbers(
    both: list[dict[str, dict[str, Tensor]]],
):
    """Before averaging, a rank holds the sum over ranks of what each rank's loss asks of it."""
    joined = torch.stack([torch.arange(3.0) + 10 * rank for rank in range(WORLD)]).requires_grad_()
    (WORLD * joined.square().sum(0).prod()).backward()
    assert joined.grad is not None
    for rank, together in enumerate(both):
        found = together["collectives"]
        assert_close(found["total"], joined.grad[rank])
        assert_close(found["gather"], (torch.arange(6.0) * (1 + 2))[3 * rank : 3 * rank + 3])
        assert_close(found["gathered"], joined.detach().flatten())


def under_torchrun(processes: int, *words: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "sdjepa", *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_run_begun_alone_goes_on_with_two_processes_as_if_nothing_had_happened(
    tiny_config: Config, tmp_path: Path
):
    """The command line under torchrun, real processes: the same losses, the same weights."""
    config = change(tiny_config, ["model.dropout=0.0", "train.ema=0.9"])
    alone = Run.create(tmp_path / "alone", config)
    train(alone)

    moved = Run.create(tmp_path / "moved", config)
    with pytest.raises(Crash):
        train(moved, progress=crash_at(6))
    under_torchrun(2, "train", "--resume", str(moved.path))
    assert [r["step"] for r in moved.metrics()] == list(range(1, 13))
    for mine, theirs in zip(moved.metrics(), alone.metrics(), strict=True):
        # Step 5 is the first that two processes take, from the same weights. From there on rounding
        # grows: Adam divides by the size of a gradient, also where that is nearly 0.
        close = 1e-4 if mine["step"] <= 5 else 2e-2
        for name in ("loss", "prediction", "sigreg", "triplet", "gradient_norm"):
            assert mine[name] == pytest.approx(theirs[name], rel=close), (name, mine["step"])
    last = [load_checkpoint(run.path).model.state_dict() for run in (moved, alone)]
    for name, value in last[1].items():
        gap = (last[0][name].float() - value.float()).abs().mean()
        assert gap < 1e-3 * (1 + value.float().abs().mean()), name


def test_one_process_has_nothing_to_sum():
    x = noise(3)
    assert ranks.total(x) is x
    assert ranks.gather(x) is x
    assert (ranks.world_size(), ranks.rank()) == (1, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
