"""One run on the kernels: the same starting weights, sequences and numbers as the plain loop of `training`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from explorer.config import RunConfig, Shape
from explorer.engine import blocks, kernels
from explorer.engine.blocks import LANES, Chunk, test_chunks, training_chunks
from explorer.models import Attention, build, model_named
from explorer.tasks import task_named
from explorer.training import Cancelled, Listener, Score, Trained, moments

assert LANES == kernels.LANES

LISTENED = 50  # times a run tells its listener, about
POLL_SECONDS = 0.01


class Start(NamedTuple):
    """Starting weights: flat (P,), the parameters' shapes, and attention's positions where those are not learned."""

    flat: np.ndarray
    shapes: tuple[tuple[int, ...], ...]
    positions: np.ndarray


@lru_cache(maxsize=64)
def _start(config: RunConfig, shape: Shape) -> Start:
    model = build(config, shape)
    fixed = getattr(model, "positions", None) if config.positions != "learned" else None
    return Start(
        parameters_to_vector(model.parameters()).detach().numpy(),
        tuple(tuple(parameter.shape) for parameter in model.parameters()),
        np.empty((0, config.width), np.float32) if fixed is None else fixed.numpy(),
    )


def starting_weights(config: RunConfig, shape: Shape) -> Start:
    """As `models.build` draws them, once for all runs that differ in other fields only."""
    fields = ("model", "hidden", "width", "positions", "keys", "start", "init_seed")
    reads_window = config.model == "attention" or config.start == "chrono"
    window = {"window": config.window} if reads_window else {}
    return _start(RunConfig(**window, **{name: getattr(config, name) for name in fields}), shape)


def forget() -> None:
    """Gives up the starting weights and sequences kept for other runs; for measurements."""
    _start.cache_clear()
    blocks.forget()


class Run:
    """The arrays of one run, and what the kernels make of them."""

    def __init__(self, config: RunConfig, cancel: np.ndarray):
        self.config, self.cancel = config, cancel
        self.kind, self.task = model_named(config.model), task_named(config.task)
        self.shape = self.task.shape(config.window)
        self.start = starting_weights(config, self.shape)
        self.state = tuple(np.zeros((4, len(self.start.flat)), np.float32))  # weights, gradient, Adam's two means
        self.state[0][:] = self.start.flat
        self.moments = moments(config.steps)
        self.kept = np.empty((len(self.moments), len(self.start.flat)), np.float32)
        self.kept[0] = self.start.flat
        self.losses = np.empty(config.steps, np.float32)
        self.done = 0
        self.rectified = config.start == "identity"
        self._layout: tuple = ()

    def train(self, chunk: Chunk, first: int, steps: int) -> None:
        """Steps `first` to `first + steps` of a chunk."""
        inputs, targets = chunk.inputs, chunk.targets
        if len(inputs) > 1:
            inputs, targets = inputs[first : first + steps], targets[first : first + steps]
        weights, gradients, memory = self.layout(inputs.shape[2], targets.shape[2])
        kernel, _ = kernels.ENTRIES[self.config.model]
        kernel(
            self.rectified, weights, gradients, memory, inputs, targets, chunk.sequences, self.state, self.done, steps,
            self.config.learning_rate, self.config.clip or math.inf, self.losses, self.moments, self.kept, self.cancel,
        )  # fmt: skip
        self.done += steps

    def score(self, chunks: Iterator[Chunk]) -> Score:
        weights, _, memory = self.layout(self.config.window, self.shape.targets)
        if self.kind is not Attention:  # a step needs the one before it, only backward needs all of them
            memory = (*(part[:2] for part in memory[:2]), *(part[:1] for part in memory[2:5]), *memory[5:])
        sums, first = np.zeros((self.shape.targets, 6)), np.empty((self.shape.targets, 2), np.float32)
        _, kernel = kernels.ENTRIES[self.config.model]
        scored = 0
        for chunk in chunks:
            inputs, targets = chunk.inputs[0], chunk.targets[0]
            kernel(self.rectified, weights, memory, inputs, targets, chunk.sequences, scored, sums, first, self.cancel)
            scored += chunk.sequences
            if self.cancel[0]:
                raise Cancelled
        error, p, y, p2, y2, py = sums.T / scored
        spread, together = (p2 - p * p) * (y2 - y * y), py - p * y
        r2 = np.where(spread > 1e-14, together**2 / np.maximum(spread, 1e-14), 0.0)
        return Score(float(error.mean()), float(r2.mean()))

    def layout(self, window: int, targets: int) -> tuple[tuple, tuple, tuple]:
        """Parameters, gradients and working memory as the kernels take them, for a stage's window and targets."""
        if self._layout[:2] != (window, targets):
            parts = self._attention if self.kind is Attention else self._recurrent
            self._layout = window, targets, *parts(window, targets)
        return self._layout[2:]

    def _recurrent(self, window: int, targets: int) -> tuple[tuple, tuple, tuple]:
        def parameters(flat):
            *cell, weight, bias = self._views(flat)
            return *cell, weight[:targets], bias[:targets]

        gates, state = self.kind.gates, (self.config.hidden, LANES)
        all_gates = (gates * self.config.hidden, LANES)
        inner = window if gates > 1 else 1  # an RNN needs its hidden state alone
        hidden, cell, extra, a, u, d_hidden, d_cell, prediction, error, bias = _empty(
            (window + 1, *state), (window + 1, *state), (inner, *state), (inner, *all_gates), all_gates, state, state,
            (targets, LANES), (targets, LANES), (gates * self.config.hidden,),
        )  # fmt: skip
        a_gate, u_gate = a.reshape(inner, gates, *state), u.reshape(gates, *state)
        memory = hidden, cell, a, a_gate, extra, u, u_gate, prediction, error, d_hidden, d_cell, bias
        return parameters(self.state[0]), parameters(self.state[1]), memory

    def _attention(self, window: int, targets: int) -> tuple[tuple, tuple, tuple]:
        learned, content = self.config.positions == "learned", self.config.keys != "position"
        size, features = self.config.width, self.shape.features
        nothing = np.empty((0, size), np.float32)

        def parameters(flat, fixed):
            views = self._views(flat)
            positions = views.pop(0)[:window] if learned else fixed
            key, query = views[:2]
            return positions, key, query[:targets], views[2] if content else nothing

        shapes = (targets, size), (targets, window), (targets, features)
        memory = _empty(*shapes, *shapes, *2 * [(targets, LANES)], (window if content else 1, LANES), (1, LANES))
        return parameters(self.state[0], self.start.positions[:window]), parameters(self.state[1], nothing), memory

    def _views(self, flat: np.ndarray) -> list[np.ndarray]:
        """A flat vector as the parameters it is made of."""
        views, end = [], 0
        for shape in self.start.shapes:
            start, end = end, end + math.prod(shape)
            views.append(flat[start:end].reshape(shape))
        return views


def _empty(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Arrays that begin at a cache line, as torch's do and numpy's do not: a quarter of the time."""
    return tuple(torch.empty(shape).numpy() for shape in shapes)


def run(
    config: RunConfig, cancelled: Callable[[], bool] = lambda: False, listen: Listener | None = None
) -> tuple[Trained, Score]:
    """See `engine.run`."""
    torch.set_num_threads(1)  # holds for this thread: the cores are taken by other runs
    with _watched(cancelled) as cancel:
        run = Run(config, cancel)
        for chunk in training_chunks(config, run.task):
            most = math.ceil(config.steps / LISTENED) if listen else chunk.steps
            for first in range(0, chunk.steps, max(1, most)):
                run.train(chunk, first, min(most, chunk.steps - first))
                if cancel[0] or cancelled():
                    raise Cancelled
                if listen:
                    listen(run.done, float(run.losses[run.done - 1]))
        score = run.score(test_chunks(config, run.task))
    return Trained(run.losses, run.moments, run.kept), score


# ------------------------------------------------------------ one thread asks for all runs whether they are cancelled

_watched_runs: dict[int, tuple[np.ndarray, Callable[[], bool]]] = {}
_anything = threading.Event()
_watcher: threading.Thread | None = None
_lock = threading.Lock()


@contextmanager
def _watched(cancelled: Callable[[], bool]) -> Iterator[np.ndarray]:
    """A byte that turns to 1 soon after `cancelled` says so: a kernel can look at it without the interpreter."""
    global _watcher
    cancel = np.zeros(1, np.uint8)
    if cancelled():
        raise Cancelled
    with _lock:
        if _watcher is None:
            _watcher = threading.Thread(target=_watch, name="engine-cancel", daemon=True)
            _watcher.start()
        _watched_runs[id(cancel)] = cancel, cancelled
    _anything.set()
    try:
        yield cancel
    finally:
        del _watched_runs[id(cancel)]


def _watch() -> None:
    while True:
        time.sleep(POLL_SECONDS)
        for cancel, cancelled in list(_watched_runs.values()):
            if cancelled():
                cancel[0] = 1
        if not _watched_runs:
            _anything.clear()
            if not _watched_runs:
                _anything.wait()
