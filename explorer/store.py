"""Results on disk and in memory: what has been trained once is not trained again.

    store = open_store()
    result, trained = store.get(config, run)

One file a run, `v<code version>-<hash of the canonical config>.npz`: plain arrays and a JSON text, with a digest of all
of it as the zip archive's comment, so that a damaged file is found before any of it is believed. Beside the entries lie
`locks/`, a lock for each run being trained, and `damaged/`, files that were set aside.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from explorer import experiment
from explorer.config import RunConfig
from explorer.experiment import Cancelled, RunResult, canonical

DISK_BYTES = 2**30
MEMORY_BYTES = 64 * 2**20
EVICT_TO = 0.9  # of the cap, so that not every save has to make room
DAMAGED_KEPT = 100
LEFT_BEHIND = 3600  # seconds after which a temporary file or a lock that nobody holds is taken for a killed process's
POLL = 0.05  # seconds between two looks at a lock, and at `cancelled`

ARRAYS = ("train_loss", "moments", "weights")
ENTRY = re.compile(r"v\d+-[0-9a-f]{32}\.npz")
LOCK = re.compile(r"v\d+-[0-9a-f]{32}\.npz\.lock")
TEMPORARY = re.compile(r"[0-9a-f]{32}\.tmp")
DIGEST = hashlib.sha256
DIGEST_BYTES = DIGEST().digest_size

logger = logging.getLogger(__name__)


class Store:
    """Results by config. Several threads may share one store, and several processes one folder.

    Args:
        folder: where the entries lie; None keeps them in memory only. A folder that cannot be used is no error: see
            `warning`.
        cap: bytes of all entries on disk. Beyond it the least recently used go, those of other code versions first.
        memory: bytes of results kept in memory, in front of the disk or in its place.

    Attributes:
        warning: None, or what keeps results from being stored and what to do about it, for people to read.
    """

    def __init__(self, folder: str | os.PathLike | None, cap: int = DISK_BYTES, memory: int = MEMORY_BYTES):
        self.folder: Path | None = None
        self.cap = cap
        self.warning: str | None = None
        self._logged = False
        self._memory: OrderedDict[str, RunResult] = OrderedDict()  # the least recently used first
        self._memory_cap, self._memory_total = memory, 0  # bytes
        self._gates: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()
        self._memory_lock = threading.Lock()  # of all these
        self._total = 0  # bytes on disk, as far as this process knows
        self._total_lock = threading.Lock()
        if folder is not None:
            try:
                self.folder = Path(folder).expanduser().absolute()
                self._open()
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder for "~"
                self._warn(folder, error)

    def load(self, config: RunConfig) -> RunResult | None:
        """The stored result, with the config asked for and arrays that cannot be written to; None if there is none.

        Raises:
            ValueError: see `experiment.canonical`.
        """
        kept = canonical(config)
        name = entry_name(kept)
        with self._memory_lock:
            if (result := self._memory.get(name)) is not None:
                self._memory.move_to_end(name)
        if result is None and self.folder is not None:
            result = self._read(self.folder / name, kept)
        return None if result is None else replace(result, config=config)

    def save(self, result: RunResult) -> None:
        """Stores a result under its config. A disk that refuses is no error: see `warning`.

        Raises:
            ValueError: an array does not have the shape or the kind of numbers that `RunResult` promises.
        """
        result = _frozen(result, canonical(result.config))
        check(result)
        name = entry_name(result.config)
        self._remember(name, result)
        if self.folder is None or len(data := pack(result)) > self.cap:
            return
        try:
            self._write(self.folder / name, data)
        except OSError as error:
            self._warn(self.folder, error)
        else:
            self.warning = None

    def known(self, config: RunConfig) -> bool:
        """Whether `load` would find a result. Reads no file, so it does not see damage."""
        name = entry_name(config)
        return name in self._memory or (self.folder is not None and (self.folder / name).is_file())

    def get(
        self,
        config: RunConfig,
        compute: Callable[[RunConfig], RunResult],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[RunResult, bool]:
        """The stored result, or that of `compute(config)`, which is then stored; and whether it was computed now.

        Whoever asks for the same config meanwhile, in this process or another, waits for that result.

        Args:
            cancelled: asked every 50 ms while waiting, and before `compute`.

        Raises:
            Cancelled: `cancelled` said so.
            ValueError: see `experiment.canonical` and `save`; and whatever `compute` raises.
        """
        if (result := self.load(config)) is not None:
            return result, False
        with self._alone(entry_name(config), cancelled):
            if (result := self.load(config)) is not None:
                return result, False
            if cancelled():
                raise Cancelled
            result = compute(config)
            self.save(result)
            return _frozen(result, config), True

    def info(self) -> dict:
        """The folder, its entries, their bytes, damaged files set aside, the cap in bytes, and the warning.

        Entries that are only in memory count where the disk cannot be used.
        """
        entries = self._entries()
        return {
            "folder": None if self.folder is None else str(self.folder),
            "entries": len(entries),
            "bytes": sum(entries.values()),
            "damaged": 0 if self.folder is None else len(_files(self.folder / "damaged", ENTRY)),
            "cap": self.cap,
            "warning": self.warning,
        }

    def clear(self) -> int:
        """Removes all entries, damaged files and locks that nobody holds. Returns how many entries went."""
        before = self._entries()
        with self._memory_lock:
            self._memory.clear()
            self._memory_total = 0
        if self.folder is not None:
            with self._total_lock:
                for file in _files(self.folder, ENTRY) + _files(self.folder / "damaged", ENTRY):
                    _remove(file.path)
                self._total = sum(file.size for file in _files(self.folder, ENTRY))
            self._remove_locks(_files(self.folder / "locks", LOCK))
        return len(before.keys() - self._entries().keys())

    def _open(self) -> None:
        """Makes the folder, finds out whether it can be written to, and tidies up after killed processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._total = sum(file.size for file in _files(self.folder, ENTRY))
        probe = self._temporary()
        probe.touch(exist_ok=False)
        probe.unlink()
        old = time.time() - LEFT_BEHIND
        for file in _files(self.folder, TEMPORARY):
            if file.used < old:
                _remove(file.path)
        self._remove_locks([file for file in _files(self.folder / "locks", LOCK) if file.used < old])

    def _warn(self, folder: str | os.PathLike, error: Exception) -> None:
        self.warning = (
            f"Results cannot be stored in {os.fspath(folder)} ({getattr(error, 'strerror', None) or error}); they are "
            "kept in memory and lost when the program ends. Make that folder writable or free some disk space, or set "
            "the environment variable EXPLORER_STORE to another folder."
        )
        if not self._logged:
            self._logged = True
            logger.warning(self.warning)

    def _entries(self) -> dict[str, int]:
        """Bytes of every entry by name."""
        entries = {} if self.folder is None else {file.path.name: file.size for file in _files(self.folder, ENTRY)}
        if self.folder is None or self.warning:
            with self._memory_lock:
                entries = {name: _bytes(result) for name, result in self._memory.items()} | entries
        return entries

    def _remember(self, name: str, result: RunResult) -> None:
        with self._memory_lock:
            if name in self._memory:
                self._memory_total -= _bytes(self._memory.pop(name))
            self._memory[name] = result
            self._memory_total += _bytes(result)
            while self._memory_total > self._memory_cap:
                self._memory_total -= _bytes(self._memory.popitem(last=False)[1])

    def _read(self, path: Path, config: RunConfig) -> RunResult | None:
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                data = file.read()
        except OSError:  # gone by now, or not ours to read: a miss, but no damage
            return None
        try:
            result = unpack(data, config)
        except Exception as error:  # what numpy, zipfile and json raise on damaged files has no end
            self._set_aside(path, status, error)
            return None
        with suppress(OSError):
            os.utime(path)
        self._remember(path.name, result)
        return result

    def _set_aside(self, path: Path, status: os.stat_result, error: Exception) -> None:
        logger.warning("Stored result %s is damaged (%s); it is set aside", path.name, error)
        with suppress(OSError):
            if not os.path.samestat(status, path.stat()):
                return  # another process has put a new one in its place
            damaged = path.parent / "damaged"
            damaged.mkdir(exist_ok=True)
            path.replace(damaged / path.name)
            with self._total_lock:
                self._total -= status.st_size
            for file in _files(damaged, ENTRY)[:-DAMAGED_KEPT]:
                _remove(file.path)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary()
        try:
            # Not synced to the disk, which would cost more than most runs: the digest finds what a power cut tears.
            with temporary.open("xb") as file:
                file.write(data)
            before = path.stat().st_size if path.exists() else 0
            temporary.replace(path)
        except BaseException:
            _remove(temporary)
            raise
        with self._total_lock:
            self._total += len(data) - before
            if self._total > self.cap:
                self._make_room(path)

    def _make_room(self, keep: Path) -> None:
        """Removes entries until the cap is kept again; not the one just written, whatever the clock says its age is."""
        files = _files(self.folder, ENTRY)
        self._total = sum(file.size for file in files)  # other processes write and remove as well
        if self._total <= self.cap:
            return
        current = _prefix()
        files.sort(key=lambda file: file.path.name.startswith(current))  # keeps the order of use within each half
        for file in files:
            if self._total <= EVICT_TO * self.cap:
                return
            if file.path != keep and _remove(file.path):
                self._total -= file.size

    def _temporary(self) -> Path:
        return self.folder / f"{secrets.token_hex(16)}.tmp"

    @contextmanager
    def _alone(self, name: str, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Lets one thread of all processes through at a time, for each name."""
        with self._memory_lock:
            gate = self._gates.setdefault(name, threading.RLock())
        while not gate.acquire(timeout=POLL):
            if cancelled():
                raise Cancelled
        try:
            with self._file_lock(name, cancelled):
                yield
        finally:
            gate.release()

    @contextmanager
    def _file_lock(self, name: str, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Holds the lock between processes. Where there can be none, two may train the same run, with equal results.

        The lock is the system's own on an open file, so it ends with its process however that ends; a soft lock, a
        file that is there or not, would outlive it.
        """
        if self.folder is None:
            yield
            return
        path = self.folder / "locks" / f"{name}.lock"
        lock = FileLock(path, fallback_to_soft=False)  # an object of its own excludes other threads' objects, too
        try:
            lock.acquire(poll_interval=POLL, cancel_check=cancelled)
        except Timeout:  # an OSError itself; as there is no time limit, only `cancelled` ends the wait
            raise Cancelled from None
        except OSError:
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                if (self.folder / name).is_file():
                    _remove(path)  # whoever waits for it, or makes a new one, finds the result first
                with suppress(OSError):
                    lock.release()

    def _remove_locks(self, files: list[_File]) -> None:
        for file in files:
            lock = FileLock(file.path, fallback_to_soft=False)
            with suppress(OSError), lock.acquire(blocking=False):  # Timeout, an OSError: someone holds it
                _remove(file.path)


def open_store(enabled: bool = True) -> Store:
    """The store in the folder that EXPLORER_STORE names, else in the platform's cache folder; or in memory only."""
    if not enabled:
        return Store(None)
    return Store(os.environ.get("EXPLORER_STORE") or Path(user_cache_dir("why-attention")) / "runs")


def entry_name(config: RunConfig) -> str:
    """The file name of a config's result under the present code version. Equal runs have equal names."""
    return _entry_name(canonical(config), experiment.CODE_VERSION)


@lru_cache(maxsize=8192)
def _entry_name(config: RunConfig, code: int) -> str:
    text = json.dumps({"config": config.to_dict(), "code": code}, sort_keys=True)
    return f"{_prefix()}{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"


def pack(result: RunResult) -> bytes:
    """The file of a result: a npz archive of its arrays and a JSON text, with a digest of it all as its comment."""
    record = {
        "code": experiment.CODE_VERSION,
        "config": result.config.to_dict(),
        "test_loss": float(result.test_loss),
        "r2": float(result.r2),
        "parameters": int(result.parameters),
        "seconds": float(result.seconds),
        "versions": result.versions,
    }
    return seal(record, {name: getattr(result, name) for name in ARRAYS})


def seal(record: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """A npz archive of the arrays and the record as JSON, whose comment is the digest of all that stands before."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(record).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, record=text, **arrays)
    archive = buffer.getvalue()[:-2] + DIGEST_BYTES.to_bytes(2, "little")  # its end: how long the comment is
    return archive + DIGEST(archive).digest()


def unpack(data: bytes, config: RunConfig) -> RunResult:
    """The result in a file that `pack` made for this canonical config. Raises some Exception for any other bytes."""
    if DIGEST(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise ValueError("its digest does not fit")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in ARRAYS}
        record = json.loads(archive["record"].tobytes())
    if record.pop("code") != experiment.CODE_VERSION or RunConfig.from_dict(record.pop("config")) != config:
        raise ValueError("it is the result of another run")
    result = _frozen(RunResult(config=config, **record, **arrays), config)
    check(result)
    return result


def check(result: RunResult) -> None:
    """Raises ValueError unless the arrays are as `RunResult` describes them."""
    steps = result.config.steps if result.parameters else 0  # without parameters nothing is trained
    moments = len(result.moments)
    for name, shape, kind in (
        ("train_loss", (steps,), "f"),
        ("moments", (max(1, moments),), "i"),
        ("weights", (moments, result.parameters), "f"),
    ):
        array = getattr(result, name)
        if array.shape != shape or array.dtype.kind != kind:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}; the shape must be {shape}")


def _prefix() -> str:
    return f"v{experiment.CODE_VERSION}-"


def _frozen(result: RunResult, config: RunConfig) -> RunResult:
    """A copy that shares no array with anyone, to be handed to many threads."""
    arrays = {name: np.array(getattr(result, name), order="C") for name in ARRAYS}
    for array in arrays.values():
        array.flags.writeable = False
    return replace(result, config=config, **arrays)


def _bytes(result: RunResult) -> int:
    return 2048 + sum(getattr(result, name).nbytes for name in ARRAYS)  # about 2 kB for all that is no array


class _File(NamedTuple):
    used: float  # seconds since 1970
    size: int
    path: Path


def _files(folder: Path, pattern: re.Pattern) -> list[_File]:
    """The store's own files in a folder, the least recently used first; none where the folder cannot be read."""
    found = []
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            if pattern.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                with suppress(OSError):  # removed by another process since
                    status = file.stat(follow_symlinks=False)
                    found.append(_File(status.st_mtime, status.st_size, folder / file.name))
    return sorted(found)


def _remove(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
