"""Files and folders that appear complete or not at all; locks for folders, checksums and CRCs.

A file is written under a temporary name, flushed to disk and then renamed, so that readers never see a partial
file, even if the writing process is killed. Temporary names are unique and end in `.partial`. File permissions follow
the umask. Errors name the path.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

CRC = "crc32"  # key of the CRC in the JSON objects that the library writes
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}  # errors of file systems without locks


class FolderBusy(OSError):
    """Another process is writing to the folder."""


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file so that it appears complete or not at all.

    Args:
        path: the file; its folder must exist.
        write: writes the file; called with a temporary path in the same folder.

    Raises:
        OSError: the file cannot be written. The message names `path`; an existing file is unchanged.

    Example:
        >>> write_atomically(Path("a.txt"), lambda partial: partial.write_text("hello"))  # doctest: +SKIP
    """
    write_together({path: write})


def write_together(writes: Mapping[Path, Callable[[Path], None]]) -> None:
    """Write several files of one folder so that a new last file never appears with old versions of the others.

    All files are written under temporary names before any of them is renamed, so that a full disk changes nothing. They
    are then renamed in order. If the content of the last file changes, its old version is removed first: after an
    interruption, the folder contains the old files, the new files, or no last file. A lock keeps two processes from
    mixing their files.

    Args:
        writes: for each path, a function that writes the file; see `write_atomically`.

    Raises:
        OSError: a file cannot be written. The message names its path.
        FolderBusy: another process is writing these files.

    Example:
        >>> write_together({folder / "data": write_data, folder / "index.json": write_index})  # doctest: +SKIP
    """
    partials = {path: _partial(path) for path in writes}
    *first, last = writes
    lock = FolderLock(last.with_name(f".{last.name}.lock"), last.parent, temporary=True)
    if first:
        lock.acquire()
    try:
        for path, write in writes.items():
            with _named(path):
                mode = _create(partials[path])
                write(partials[path])
                partials[path].chmod(mode)  # safetensors replaces the file with one of mode 0600
                _flush(partials[path])
        if first and last.exists() and last.read_bytes() != partials[last].read_bytes():
            with _named(last):
                last.unlink()
                _flush(last.parent)
        for path, partial in partials.items():
            with _named(path):
                os.replace(partial, path)
                _flush(path.parent)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
        lock.release()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with `write_atomically`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes with `write_atomically`."""
    write_atomically(path, bytes_writer(content))


def bytes_writer(content: bytes) -> Callable[[Path], None]:
    """Return a function that writes bytes to a path, for `write_together`."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    return write


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object and its CRC (see `with_crc`) as JSON with `write_atomically`; `read_json_object` reads it."""
    write_text(path, json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(with_crc(values), indent=1, ensure_ascii=False) + "\n"


def with_crc(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with an additional key `crc32`, which `check_crc` uses to detect accidental changes."""
    plain = {key: value for key, value in values.items() if key != CRC}
    return {**plain, CRC: _crc(plain)}


def check_crc(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a JSON object without its key `crc32`; an object without this key is accepted.

    Args:
        values: the object.
        place: the file, and the line if it has several objects, for the error message.

    Raises:
        ValueError: the values have changed since the key was computed.
    """
    plain = {key: value for key, value in values.items() if key != CRC}
    if len(plain) == len(values):
        *before, last = values.items() if values else [(CRC, None)]
        damaged = last[1] == _crc(dict(before))  # the name of the key itself was changed
    else:
        damaged = values[CRC] != _crc(plain)
    if damaged:
        raise ValueError(
            f"{place}: damaged: the content does not match its key {CRC!r}; "
            "restore the file, or remove this key if you have edited the file"
        )
    return plain


def _crc(values: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors as a safetensors file with `write_atomically`; they are copied to the CPU if necessary."""
    write_atomically(path, tensors_writer(tensors))


def tensors_writer(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> Callable[[Path], None]:
    """Return a function that writes a safetensors file, for `write_together`; `metadata` is stored in its header."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(partial: Path) -> None:
        # Imported here because it loads torch, which the other functions do not need.
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(contiguous, partial, metadata)
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            number = int(found[1]) if found else errno.EIO
            raise OSError(number, os.strerror(number) if found else str(error)) from error

    return write


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file, whose folder must exist, and flush the file to disk."""
    with _named(path), open(path, "a", encoding="utf-8", newline="\n") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_new(folder: Path) -> None:
    """Raise FileExistsError if the folder exists; call this function before a long computation."""
    if folder.exists():
        raise FileExistsError(f"{folder} already exists; remove it or choose another folder")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Create a folder that appears complete or not at all.

    Yields a temporary folder, to which the body of the `with` statement writes. If two processes create the same folder
    at the same time, exactly one of them succeeds.

    Raises:
        FileExistsError: the folder already exists, or another process has created it in the meantime.
        FolderBusy: another process is creating it.
        OSError: the folder cannot be created. The message names its path.

    Example:
        >>> with whole_folder(Path("corpus")) as partial:  # doctest: +SKIP
        ...     write_text(partial / "train.txt", "a b c")
    """
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        number = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno
        raise OSError(number, os.strerror(number or 0), str(folder)) from None
    lock = FolderLock(folder.with_name(f".{folder.name}.lock"), folder, temporary=True)
    lock.acquire()
    partial = _partial(folder)
    try:
        for path in folder.parent.iterdir():
            if _is_partial(path, folder.name):  # left by a killed process
                shutil.rmtree(path, ignore_errors=True)
        with _named(folder):
            partial.mkdir()
        yield partial
        with _named(folder):
            for path in [*partial.rglob("*"), partial]:
                _flush(path)
            _rename_new(partial, folder)
            _flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.release()


def remove_partial(folder: Path) -> None:
    """Remove temporary files that a killed process left in a folder or its subfolders."""
    for partial in folder.rglob(".*.partial"):
        partial.unlink(missing_ok=True)


class FolderLock:
    """A lock file that only one process can hold. The operating system releases it when the process ends.

    Args:
        path: the lock file; its folder must exist.
        folder: the folder that the lock protects, for error messages.
        temporary: remove the lock file on release.
    """

    def __init__(self, path: Path, folder: Path, temporary: bool = False):
        self.path, self.folder, self.temporary = path, folder, temporary
        self._handle: int | None = None

    def acquire(self) -> None:
        """Acquire the lock without waiting.

        On file systems without locks, log a warning (once for each device) and continue without a lock; on Windows, do
        nothing.

        Raises:
            FolderBusy: another process holds the lock.
        """
        if fcntl is None:
            return
        while True:
            with _named(self.path):
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._close()
                raise FolderBusy(
                    f"{self.folder}: another process is writing to this folder; wait until it ends"
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    self._close()
                    raise OSError(error.errno, error.strerror, str(self.path)) from None
                _warn_once(self.folder, self.folder.stat().st_dev, str(error.strerror))
                return
            if self.valid:  # otherwise another process has just removed its temporary lock file
                return
            self._close()

    @property
    def held(self) -> bool:
        """Whether `acquire` has opened the lock file; also True on file systems without locks."""
        return self._handle is not None

    @property
    def valid(self) -> bool:
        """Whether the held lock file still exists; False if its folder was deleted or replaced."""
        try:
            return self._handle is not None and os.path.samestat(os.fstat(self._handle), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        if self.temporary and self.valid:
            self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


_without_locks: set[int] = set()  # devices for which a warning has been logged


def _warn_once(folder: Path, device: int, reason: str) -> None:
    """Warn about a file system without locks, once for each device."""
    if device not in _without_locks:
        _without_locks.add(device)
        advice = "make sure that no other process writes to this folder"
        logging.getLogger(__name__).warning(f"{folder}: the file system has no locks ({reason}); {advice}")


@contextmanager
def locked(folder: Path, lock: Path, temporary: bool = False) -> Iterator[None]:
    """Hold the lock of a folder in the body of the `with` statement; `lock` is the lock file (see `FolderLock`)."""
    held = FolderLock(lock, folder, temporary)
    held.acquire()
    try:
        yield
    finally:
        held.release()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


def _is_partial(path: Path, name: str) -> bool:
    """Whether `_partial` made this path for a file or folder `name`, and not for another one such as `name.2`."""
    return re.fullmatch(rf"\.{re.escape(name)}\.\d+-[0-9a-f]{{8}}\.partial", path.name) is not None


def _create(path: Path) -> int:
    """Create a file and return its mode, which depends on the umask."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return os.fstat(handle).st_mode & 0o777
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    """Flush a file or a folder to disk; Windows does not support this for folders."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename_new(partial: Path, folder: Path) -> None:
    try:
        os.rename(partial, folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise FileExistsError(f"{folder}: another process has created it in the meantime") from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make OSErrors name `path` instead of a temporary file or no file at all."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename and not str(error.filename).endswith(".partial")):
            raise
        if error.errno == errno.ENOENT and not path.parent.is_dir():
            path = path.parent
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
