"""The encoder of the recorded step computes what `Encoder.forward` does, gradients included.

Triton's interpreter runs the kernels on a CPU. It must be chosen before Triton is first imported,
so this file is also the program of a process of its own, which prints the errors it finds.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from sdjepa.config import Model
from sdjepa.model.encoder import Encoder

pytest.importorskip("triton")
# Keys that come by in two blocks and in one; queries' gradients as they are and transposed.
WAYS = {"in pieces": (16, 16, 16, False, 4, 1, None), "at once": (16, 32, 32, True, 4, 1, None)}
FEW = {"few": 20, "few and full": 15}  # patches kept: a block of 32 with padding, of 16 without


def make(kept: int = 0) -> tuple[Encoder, Tensor]:
    """Two blocks, 32 patches and nothing at its initial value, where a lost term would hide."""
    torch.manual_seed(0)
    encoder = Encoder(
        Model(
            action_dim=1,
            frame_skip=1,
            image_size=64,
            patch=16,
            encoder_width=48,
            encoder_heads=3,
            encoder_mlp=64,
            encoder_depth=2,
            tokens=min(kept, 16),
        )
    )
    encoder.kept = kept
    encoder.position = torch.nn.Parameter(torch.zeros(1, 33, 48))
    for parameter in encoder.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn(parameter.shape)
    # Twice as wide as high, for a number of patches that is a power of two but no square.
    frames = torch.randint(0, 256, (2, 64, 128, 3), dtype=torch.uint8)
    if kept:
        # One frame shows less change than patches are kept: some of the still ones fill up.
        encoder.background = frames[0].clone()
        frames[0, 30:40, 30:120] = 0
    return encoder, frames


def gradients(encoder: Encoder, features: Tensor) -> dict[str, Tensor]:
    encoder.zero_grad()
    (features * torch.linspace(-1, 2, features.numel()).view_as(features)).sum().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in encoder.named_parameters()
        if parameter.grad is not None
    }


def differences() -> dict[str, dict[str, float]]:
    """Largest difference of features and gradients over the largest number there, by way."""
    from sdjepa.train import fast, kernels

    kernels.ATTEND_FORWARD = (16, 16, 4, 1)
    # Of 66 rows or 42: the last tile is not full. Of 64 hidden units: both loop and share.
    kernels.UP = kernels.DOWN_BACKWARD = (32, 16, 2, 4, 1)
    found = {}
    for way in (*WAYS, *FEW):
        encoder, frames = make(FEW.get(way, 0))
        kernels.ATTEND_BACKWARD = WAYS.get(way)
        fast.FEW = 64 if way in FEW else 0
        features = encoder(frames)
        expected = gradients(encoder, features) | {"features": features.detach()}
        features = fast.encode(encoder, frames, dtype=torch.float32)
        got = gradients(encoder, features) | {"features": features.detach()}
        assert got.keys() == expected.keys()
        found[way] = {
            name: float((got[name] - value).abs().max() / value.abs().max())
            for name, value in expected.items()
        }
    return found


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, float]]:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", [*WAYS, *FEW])
def test_kernels_equal_the_eager_encoder(report: dict[str, dict[str, float]], way: str):
    wrong = {name: error for name, error in report[way].items() if not error < 1e-5}
    assert not wrong


def test_installed_is_undone():
    from sdjepa.train import fast

    encoder, frames = make()
    before = encoder(frames)
    with fast.installed(encoder):
        assert "forward" in vars(encoder)
    assert torch.equal(encoder(frames), before)


def test_only_shapes_with_kernels_fit():
    from sdjepa.train import fast

    paper = Model(action_dim=2, frame_skip=5, encoder_depth=1)
    for fitting in ({}, {"tokens": 31}, {"tokens": 63, "image_size": 112}):
        assert fast.fits(Encoder(paper.model_copy(update=fitting)))
    for change in ({"tokens": 64}, {"image_size": 112}, {"encoder_width": 384, "encoder_heads": 6}):
        assert not fast.fits(Encoder(paper.model_copy(update=change)))


if __name__ == "__main__":
    print(json.dumps(differences()))
