"""Where frames wait for training: rows come in, frames on the device go out.

On the device when they fit (a gather is then a few microseconds), else in host memory or in a
memory-mapped file, from which the next batches are gathered and copied while the device computes.
Either way a frame is uint8 until the model reads it. For a model that reads few patches of a frame
only those wait on the device, and eight times the frames fit.
"""

import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from sdjepa.data.episodes import Episodes
from sdjepa.data.frames import frame_store
from sdjepa.data.patches import Reading
from sdjepa.runs import Progress, cores, silent

Place = Literal["device", "host", "disk"]
SHARE_OF_DEVICE, SHARE_OF_HOST = 0.6, 0.6  # of what is free: training needs the rest
AHEAD = 3  # batches on their way
_STRETCH = 1 << 28  # bytes decoded before they go to the device; pinned memory is slow to get


class Feed(Protocol):
    """Frames by place: number i is the i-th of the rows the feed was made of."""

    gathers_on: torch.device  # where it wants to be told the places

    def __call__(
        self, step: int, places: Callable[[int], Int[Tensor, "batch time"]]
    ) -> UInt8[Tensor, "batch time *frame"]:
        """Frames of batch `step`; `places` says which they are, of this batch or a later one."""
        ...


def place(
    data: Episodes,
    rows: int,
    *,
    wish: str,
    device: torch.device,
    reading: Reading | None = None,
) -> Place:
    """Where `rows` frames of this dataset should wait."""
    if wish != "auto":
        return wish  # type: ignore[return-value]
    needed = rows * math.prod(reading.shape if reading else (data.image_size, data.image_size, 3))
    if device.type == "cuda" and needed < SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
        return "device"
    if needed < SHARE_OF_HOST * _free_host_memory():
        return "device" if device.type == "cpu" else "host"
    return "disk"


def _free_host_memory() -> int:
    """Bytes; where Linux says so, with what it would give back of its file cache."""
    table = Path("/proc/meminfo")
    for line in table.read_text().splitlines() if table.exists() else ():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def open_feed(
    data: Episodes,
    rows: Int[np.ndarray, "rows"],
    *,
    where: Place,
    device: torch.device,
    reading: Reading | None = None,
    progress: Progress = silent,
) -> Feed:
    """Frames of `rows`, read where they shall wait; on the device, only what of them is read."""
    if where == "device":
        return _on_device(data, rows, device=device, reading=reading, progress=progress)
    if where == "disk":
        store = frame_store(data, progress=progress)
        return Streamed(store, rows, device=device)
    return Streamed(data.frames(rows, progress=progress), np.arange(len(rows)), device=device)


def _on_device(
    data: Episodes,
    rows: np.ndarray,
    *,
    device: torch.device,
    reading: Reading | None,
    progress: Progress,
) -> "Resident":
    """Decoded in stretches, the next while the last is copied; the host never holds them all."""
    cuda = device.type == "cuda"
    if reading is None and not cuda:
        return Resident(torch.from_numpy(data.frames(rows, progress=progress)))
    shape = (data.image_size, data.image_size, 3)
    kept = reading.shape if reading else shape
    held = torch.empty(len(rows), *kept, dtype=torch.uint8, device=device)
    stretch = max(1, min(_STRETCH // math.prod(shape), len(rows)))
    buffers = [torch.empty(stretch, *shape, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
    copied = [torch.cuda.Event() if cuda else None for _ in buffers]
    for number, low in enumerate(range(0, len(rows), stretch)):
        part = rows[low : low + stretch]
        buffer, event = buffers[number % 2][: len(part)], copied[number % 2]
        if event:
            event.synchronize()
        data.frames(part, out=buffer.numpy())
        here = buffer.to(device, non_blocking=True)
        held[low : low + len(part)] = reading.pack(here) if reading else here
        if event:
            event.record(torch.cuda.current_stream(device))
        progress(low + len(part), len(rows), "frames")
    if cuda:
        torch.cuda.current_stream(device).synchronize()
    return Resident(held)


class Resident:
    """All frames on the device, or what of them is read."""

    def __init__(self, frames: UInt8[Tensor, "rows *frame"]) -> None:
        self._shape, self.gathers_on = frames.shape[1:], frames.device
        flat = frames.view(len(frames), -1)
        # Eight bytes at a time: a gather's cost is in the number of elements.
        self._flat = flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat

    def __call__(self, step: int, places: Callable[[int], Tensor]) -> Tensor:
        wanted = places(step)
        return self._flat[wanted].view(torch.uint8).view(*wanted.shape, *self._shape)


class Streamed:
    """Frames in host memory or a file; threads gather the next batches into pinned buffers."""

    def __init__(
        self,
        frames: UInt8[np.ndarray, "all height width 3"],
        rows: Int[np.ndarray, "rows"],
        *,
        device: torch.device,
        threads: int = 8,
    ) -> None:
        self._frames, self._rows, self._device = frames, rows, device
        self.gathers_on = torch.device("cpu")
        self._threads = min(threads, cores())
        self._pool = ThreadPoolExecutor(self._threads)
        self._order = ThreadPoolExecutor(1)  # one batch after the other, each by all threads
        self._coming: deque[tuple[int, Future[Tensor]]] = deque()
        self._cuda = device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event | None] = []  # of each buffer, when it was last read
        self._made = 0
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def __call__(self, step: int, places: Callable[[int], Tensor]) -> Tensor:
        if not self._coming or self._coming[0][0] != step:
            self._forget()
        while len(self._coming) < AHEAD:
            ahead = step + len(self._coming)
            wanted = places(ahead).numpy()
            self._coming.append((ahead, self._order.submit(self._fetch, wanted)))
        _, future = self._coming.popleft()
        frames = future.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            frames.record_stream(torch.cuda.current_stream(self._device))
        return frames

    def _forget(self) -> None:
        for _, future in self._coming:
            future.result()
        self._coming.clear()

    def _fetch(self, wanted: Int[np.ndarray, "batch time"]) -> Tensor:
        rows = self._rows[wanted.reshape(-1)]
        shape = (len(rows), *self._frames.shape[1:])
        buffer = self._buffer(shape)
        target = buffer.numpy()

        def gather(part: slice) -> None:
            # mode="clip" writes straight into `out`; the default goes through a copy.
            np.take(self._frames, rows[part], axis=0, out=target[part], mode="clip")

        share = -(-len(rows) // self._threads)
        list(self._pool.map(gather, [slice(i, i + share) for i in range(0, len(rows), share)]))
        if self._stream is None:
            return buffer.view(*wanted.shape, *shape[1:]).clone()
        with torch.cuda.stream(self._stream):
            copy = buffer.to(self._device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._copied[self._made % len(self._buffers)] = event
        self._made += 1
        return copy.view(*wanted.shape, *shape[1:])

    def _buffer(self, shape: tuple[int, ...]) -> Tensor:
        """A buffer whose last copy to the device is done."""
        if not self._buffers or self._buffers[0].shape != shape:
            count = 2 if self._cuda else 1
            self._buffers = [
                torch.empty(shape, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(count)
            ]
            self._copied = [None for _ in range(count)]
            self._made = 0
        event = self._copied[self._made % len(self._buffers)]
        if event is not None:
            event.synchronize()
        return self._buffers[self._made % len(self._buffers)]
