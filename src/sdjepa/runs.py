"""A run directory: everything one training run is, as files other tools can read.

    RUN/config.toml          the resolved configuration
    RUN/manifest.json        seed, versions, code state, command, when
    RUN/metrics.jsonl        one line per logged step
    RUN/checkpoints/<name>/  weights and training state
    RUN/scores/*.json  RUN/compass/*.json  RUN/report.html

Files are written under a temporary name and renamed, so a reader sees the old file or the new one,
never half of one. One writer at a time: `Run.lock` is released by the kernel even after kill -9.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import tomli_w

import sdjepa
from sdjepa.config import Config
from sdjepa.errors import UserError
from sdjepa.resolve import load

VERSIONED = ("torch", "numpy", "h5py", "safetensors", "stable-worldmodel", "mujoco", "gymnasium")


@runtime_checkable
class Progress(Protocol):
    """How long work tells a person where it is; the command line draws it as a bar.

    A note says what is counted and then, behind a comma, how it goes: "episodes, 900 frames/s". An
    empty one leaves the last standing.
    """

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def silent(done: int, total: int, note: str = "") -> None:
    """The progress of a call nobody watches."""


def write_atomic(path: Path, data: bytes | str) -> Path:
    """Write `data` so that `path` holds either its old content or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where nothing can be written nothing can be removed
            temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from error
    return path


def unwritable(path: Path, error: OSError, *, then: str = "") -> UserError:
    """What to say where `path` cannot be written, and what helps: elsewhere, or `then` here."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some space" if full else "make it writable"
    remedy += "" if full or then else ", or choose another place"
    # HDF5 puts a page of its own where the system has its word.
    said = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
    return UserError(f"could not write {path}: {said}; {remedy}{then}")


def write_json(path: Path, value: Any) -> Path:
    """`value` as indented JSON; NaN and infinity become null, so every JSON reader accepts it."""
    return write_atomic(path, json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`; a missing or damaged file is the user's to replace."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; correct the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); make it again") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return _finite(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def versions() -> dict[str, str]:
    """The packages that decide a result, as installed here."""
    found = {"sdjepa": sdjepa.__version__, "python": platform.python_version()}
    for name in VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def code_state() -> dict[str, Any]:
    """Commit of the source tree and whether it had changes; empty for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def claim(file: int | IO[bytes], *, wait: bool = False) -> bool:
    """Lock an open file until it is closed; `BlockingIOError` where another has it, or wait.

    Some file systems of clusters know no locks; there it is False, and one does without.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return False
    return True


def cores() -> int:
    """Processors this process may use; a scheduler may grant fewer than the machine has."""
    granted = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(granted(0)) if granted else os.cpu_count() or 1


def provenance() -> dict[str, Any]:
    """What must stand beside any result: versions, code state, machine, time."""
    return {
        "versions": versions(),
        "code": code_state(),
        "machine": _machine(),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{_gpu()}"


def _gpu() -> str:
    """The GPU that is in use; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return f", {torch.cuda.get_device_name()}"


@dataclass(frozen=True)
class Run:
    """One run directory, existing on disk."""

    path: Path

    @staticmethod
    def create(path: Path, config: Config) -> "Run":
        """A new run directory with its configuration; refuses one that already holds a run."""
        if (path / "config.toml").exists():
            raise UserError(
                f"{path} already holds a run. Continue it with: sdjepa train --resume {path}"
            )
        run = Run(path)
        command = ["sdjepa", *sys.argv[1:]]  # by whichever path it was started
        manifest = {"seed": config.train.seed, "command": command, **provenance()}
        try:
            run.configure(config)
            write_json(path / "manifest.json", manifest)
        except UserError:
            run.abandon()
            raise
        return run

    def configure(self, config: Config) -> None:
        """Write the configuration."""
        write_atomic(self.path / "config.toml", tomli_w.dumps(config.model_dump()))

    def abandon(self) -> None:
        """Undo `create` where nothing has been learnt: a corrected command may use the place."""
        if self.metrics_path.exists() or (self.path / "checkpoints").exists():
            return
        for name in ("config.toml", "manifest.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # where nothing else is in it

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest, and the machine anew: its GPU is in use only now."""
        manifest = self.path / "manifest.json"
        if manifest.exists():
            write_json(manifest, {**read_json(manifest), **facts, "machine": _machine()})

    @staticmethod
    def open(path: Path) -> "Run":
        """An existing run directory."""
        if not (path / "config.toml").exists():
            raise UserError(f"{path} is not a run. Make one with: sdjepa train RECIPE --out {path}")
        return Run(path)

    @property
    def config(self) -> Config:
        """The resolved configuration the run was made with."""
        return load(self.path / "config.toml")

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing; a second writer is refused."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+b", buffering=0) as file:
            try:
                claim(file)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().decode().strip() or "unknown"
                raise UserError(
                    f"{self.path} is in use by process {holder}. Wait for it, or use another --out"
                ) from None
            file.truncate(0)
            try:
                file.write(str(os.getpid()).encode())
            except OSError as error:  # a full disk
                (self.path / ".lock").unlink()
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # where nothing else is in it
                raise unwritable(self.path, error) from error
            yield
            file.truncate(0)

    def append_metrics(self, record: dict[str, Any]) -> None:
        """One line in metrics.jsonl."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(_finite(record), allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Every logged line; a last line cut short by a kill is dropped."""
        if not self.metrics_path.exists():
            return []
        records = []
        for line in self.metrics_path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                records.append(json.loads(line))
        return records

    def rewind_metrics(self, step: int) -> None:
        """Forget lines past `step`, so that a resumed run logs every step once."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_atomic(self.metrics_path, "".join(json.dumps(record) + "\n" for record in kept))
