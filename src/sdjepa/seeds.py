"""One seed, many named random streams.

Every random draw of the package comes from `stream(seed, *names)`. Two streams with different names
are independent, and a stream depends on nothing but its name: not on call order, not on the number
of workers, not on which other tasks share a batch.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names` of `seed`."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int, device: "str | torch.device" = "cpu") -> "torch.Generator":
    """A torch generator at the start of the stream `names`."""
    import torch  # takes seconds, and a report draws from numpy's streams alone

    generator = torch.Generator(device=device)
    generator.manual_seed(derive(seed, *names))
    return generator


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """The numpy generator of the stream `names`."""
    return np.random.default_rng(derive(seed, *names))
