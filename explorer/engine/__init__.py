"""The same training as `explorer.training`, many times faster, for the models it knows.

    engine.prepare()                                   # once, early: compiles in the background, or loads from disk
    if engine.ready(config):
        trained, score = engine.run(config)            # as training.train and training.score give them

`kernels` holds the equations, `blocks` the sequences, `single` one run; `stacked` trains the lesson's two models until
their kernels are compiled. Runs are independent: each is trained by one
thread without the interpreter's lock, and gives the same numbers alone as beside others.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import platformdirs

from explorer.config import RunConfig
from explorer.engine import stacked
from explorer.training import Cancelled, Listener, Score, Trained

__all__ = ["compiled", "prepare", "ready", "run", "run_group", "status", "supports"]

KNOWN = ("rnn", "attention", "gru", "lstm")  # made ready in this order

_lock = threading.Lock()
_preparing: threading.Thread | None = None
_loading = False
_ready: set[str] = set()
_failure = ""


def supports(config: RunConfig) -> bool:
    """Whether the engine can train this run, once it is ready. What it cannot, the plain loop can."""
    return stacked.supports(config) or (not _failure and config.model in KNOWN)


def ready(config: RunConfig) -> bool:
    """Whether this run would start at once; waits about a second where kernels are just being loaded from disk."""
    if _loading and config.model not in _ready:
        prepare(wait=True)
    return config.model in _ready or stacked.supports(config)


def status() -> str:
    """ "ready", "compiling: 2 of 4 models are ready", "not started", or "unavailable" and why."""
    if _failure:
        return f"unavailable: {_failure}"
    if len(_ready) == len(KNOWN):
        return "ready"
    return f"compiling: {len(_ready)} of {len(KNOWN)} models are ready" if _preparing else "not started"


def compiled() -> bool:
    """Whether the kernels, as they are written now, are on disk: then `prepare` takes a second, else half a minute."""
    with suppress(PackageNotFoundError):  # no numba: `status` will say so
        return _mark().exists()
    return False


def prepare(wait: bool = False) -> None:
    """Starts to make the kernels ready in the background; does nothing a second time.

    Where they are not on disk yet, a second process compiles them, so that this one is not held up. Never raises:
    `status` says what came of it.
    """
    global _preparing, _loading
    with _lock:
        if _preparing is None:
            _loading = compiled()
            _preparing = threading.Thread(target=_prepare, name="engine-prepare", daemon=True)
            _preparing.start()
    if wait:
        _preparing.join()


def run(
    config: RunConfig, cancelled: Callable[[], bool] = lambda: False, listen: Listener | None = None
) -> tuple[Trained, Score]:
    """Trains and scores one canonical config that the engine supports. Safe in several threads at once.

    Args:
        cancelled: asked about a hundred times a second, from another thread.
        listen: called now and then, about 50 times a run, with the number of steps done and the last step's loss.

    Raises:
        Cancelled: within 100 ms of `cancelled` saying so.
        RuntimeError: the engine is unavailable.
    """
    if config.model not in _ready:
        if stacked.supports(config):
            return stacked.run(config, cancelled, listen)
        prepare(wait=True)
    if config.model not in _ready:
        raise RuntimeError(status())
    from explorer.engine import single  # not earlier: it imports numba

    return single.run(config, cancelled, listen)


def run_group(
    configs: Sequence[RunConfig],
    on_result: Callable[[RunConfig, Trained, Score, float], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Trains and scores canonical configs on all cores, in the order given.

    Args:
        on_result: called in this thread as each run finishes, with its config, what `run` gives, and its seconds.
        cancelled: asked about fifty times a second, in this thread.

    Raises:
        Cancelled: within 100 ms of `cancelled` saying so; results that came before were handed over.
    """
    stop = threading.Event()
    results: queue.SimpleQueue = queue.SimpleQueue()

    def work(config: RunConfig) -> None:
        start = time.perf_counter()
        try:
            outcome = run(config, stop.is_set)
        except BaseException as error:  # raised again in the caller's thread
            outcome = error
        results.put((config, outcome, time.perf_counter() - start))

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    try:
        for config in configs:
            pool.submit(work, config)
        missing = len(configs)
        while missing:
            if cancelled():
                raise Cancelled
            try:
                config, outcome, seconds = results.get(timeout=0.02)
            except queue.Empty:
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            on_result(config, *outcome, seconds)
            missing -= 1
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _cache() -> Path:
    """Where compiled kernels are kept; numba's own default is beside this file, which may be read-only."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_path("why-attention") / "kernels")


def _mark() -> Path:
    """The file that stands in the cache once all kernels, as they are written now, are there too."""
    source = Path(__file__).with_name("kernels.py").resolve()  # numba, too, keeps kernels by where their source is
    maker = f"{source} {source.stat().st_mtime_ns} {sys.version} {version('numba')} {platform.processor()}"
    return _cache() / f"compiled-{hashlib.sha256(source.read_bytes() + maker.encode()).hexdigest()[:16]}"


def _prepare() -> None:
    global _failure, _loading
    try:
        import numba

        try:
            numba.config.CACHE_DIR = str(_cache())
            _load(importlib.import_module("explorer.engine.kernels"))
        except Exception:  # a damaged or unwritable cache: once more, with an empty one
            numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="why-attention-")
            sys.modules.pop("explorer.engine.kernels", None)
            _load(importlib.import_module("explorer.engine.kernels"))
    except Exception as error:
        _failure = f"{type(error).__name__}: {error}".splitlines()[0]
    _loading = False


def _load(kernels: ModuleType) -> None:
    """Makes all models ready, each as soon as another process has compiled it, or at once if that was done before."""
    from numba import config

    importlib.import_module("explorer.engine.single")
    if not _mark().exists():
        command = [sys.executable, "-m", "explorer.engine"]
        environment = os.environ | {"NUMBA_CACHE_DIR": config.CACHE_DIR}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as compiler:
            for line in compiler.stdout:
                kernels.prepare(line.strip())
                _ready.add(line.strip())
    for model in KNOWN:
        kernels.prepare(model)
        _ready.add(model)
    if str(_cache()) == config.CACHE_DIR:
        _mark().parent.mkdir(parents=True, exist_ok=True)
        _mark().touch()
