"""The processes that train together, and sums over them that gradients pass through exactly.

Convention: every rank holds an equal slice of the batch, and gradients are averaged over ranks
after the backward pass. Under it, a loss built from `total` or `gather` has the gradient that one
process with the joined batch would have. In a single process both are the identity.
"""

import os

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def start(device: torch.device) -> bool:
    """Join the processes torchrun started, if it did; returns whether there are several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return False
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return True


def wait() -> None:
    """Until all processes have come this far."""
    if world_size() > 1:
        dist.barrier()


def stop() -> None:
    """Part from the others, if there are any."""
    if world_size() > 1:
        dist.destroy_process_group()


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad[rank() * ctx.rows : (rank() + 1) * ctx.rows]


def total(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Sum of `x` over ranks, on every rank."""
    return x if world_size() == 1 else _Total.apply(x)  # type: ignore[return-value]


def gather(x: Float[Tensor, "rows ..."]) -> Float[Tensor, "all_rows ..."]:
    """Rows of all ranks in rank order, on every rank."""
    return x if world_size() == 1 else _Gather.apply(x)  # type: ignore[return-value]


def average_gradients(module: torch.nn.Module) -> None:
    """Replace every gradient by its mean over ranks, in one collective."""
    if world_size() == 1:
        return
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= world_size()
    offset = 0
    for grad in grads:
        grad.copy_(flat[offset : offset + grad.numel()].view_as(grad))
        offset += grad.numel()
