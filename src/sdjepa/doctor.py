"""What this machine has and what it lacks, each with the command that mends it."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sdjepa.envs.base import NAMES, make
from sdjepa.errors import UserError
from sdjepa.runs import versions
from sdjepa.seeds import numpy_stream


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    ok: bool = True
    fix: str = ""


def examine() -> Iterator[Finding]:
    """Findings in the order a person would ask, each made when it is asked for."""
    yield Finding("versions", ", ".join(f"{name} {number}" for name, number in versions().items()))
    yield _devices()
    yield _disk(Path.cwd())
    yield Finding("OpenGL", f"MUJOCO_GL={os.environ.get('MUJOCO_GL') or 'not set, chosen by us'}")
    for name in NAMES:
        yield _render(name)


def _devices() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("devices", ", ".join(names))
    return Finding("devices", f"CPU only, {os.cpu_count()} cores: enough for the demo")


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(path).free / 2**30
    return Finding(
        "free disk", f"{free:.0f} GiB at {path}", ok=free > 5, fix="free some space: 5 GiB or more"
    )


def _render(name: str) -> Finding:
    """One frame of an environment, really drawn."""
    what = f"environment {name}"
    if find_spec("stable_worldmodel") is None:
        return Finding(what, "simulators not installed", False, "pip install 'sdjepa[envs]'")
    try:
        env = make(name)
        env.reset(numpy_stream(0, "doctor"))
        frame = env.render(224)
        env.close()
    except (UserError, ImportError, OSError, RuntimeError, AttributeError) as error:
        # What a missing GL library raises depends on the binding that looks for it.
        fix = "sudo apt-get install libegl1 libgl1 libopengl0 libosmesa6"
        return Finding(what, f"{type(error).__name__}: {error}", False, fix)
    return Finding(
        what,
        f"a {frame.shape[1]} x {frame.shape[0]} frame, {len(set(frame.reshape(-1)))} grey levels",
        ok=frame.min() < frame.max(),
        fix="the frame is blank: try MUJOCO_GL=osmesa",
    )
