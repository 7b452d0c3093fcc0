"""The file under HDF5: bytes in, a file out, and a disk's refusal told to us instead of to HDF5.

HDF5 does not survive a write that fails while it closes a file: the process ends. Here no write
fails. What the disk refused is kept in memory, where HDF5 finds it again, until its user has asked
`check`, which raises the refusal, and has thrown the file away.
"""

import contextlib
import io
import os
from pathlib import Path

from sdjepa.runs import claim


class Sink(io.RawIOBase):
    """What `h5py.File` takes for a file; `BlockingIOError` where another process writes it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        _remove_left_behind(path)
        try:
            # Never into a file that is there: where no locks are known somebody may be writing it.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:  # another process was faster
            raise BlockingIOError(f"{path} is another's") from error
        try:
            claim(self._file)
            if not self.in_place():
                raise BlockingIOError(f"{path} is another's")
        except OSError:
            os.close(self._file)
            raise
        self._at, self._end = 0, 0
        self._refusal: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []  # where it should be, and what

    def in_place(self) -> bool:
        """Whether what is at the path is this file, and not gone or another's."""
        return _is_at(self._path, self._file)

    def check(self) -> None:
        """Raise what the disk said when it first refused something."""
        if self._refusal is not None:
            raise self._refusal

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        count = len(data)
        if self._refusal is None:
            try:
                done = 0
                while done < count:
                    done += os.pwrite(self._file, data[done:], self._at + done)
            except OSError as error:
                self._refusal = error
        if self._refusal is not None:
            self._kept.append((self._at, bytes(data)))
        self._at += count
        self._end = max(self._end, self._at)
        return count

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._end - self._at))
        found = os.pread(self._file, count, self._at)
        buffer[:count] = found.ljust(count, b"\0")
        for place, data in self._kept:
            first, last = max(place, self._at), min(place + len(data), self._at + count)
            if first < last:
                buffer[first - self._at : last - self._at] = data[first - place : last - place]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._end = self._at if size is None else size
        if self._refusal is None:
            try:
                os.ftruncate(self._file, self._end)
            except OSError as error:
                self._refusal = error
        return self._end

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def settle(self) -> None:
        """Have all of it on the disk."""
        self.check()
        os.fsync(self._file)

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def _remove_left_behind(path: Path) -> None:
    """Remove what a writer that was killed left; `BlockingIOError` where one is at work."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        claim(file)
        # Whoever held it until just now may have given the file its name.
        if _is_at(path, file.fileno()):
            path.unlink()


def _is_at(path: Path, file: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False
