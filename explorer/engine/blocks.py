"""Sequences in the kernels' layout, drawn as the plain loop draws them and shared between runs that read the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from explorer.config import RunConfig
from explorer.tasks import Task

LANES = 32  # sequences in a block
CHUNK_BYTES = 16 * 2**20  # of fresh or test sequences made ready at once
SHARED_BYTES = 64 * 2**20  # of all sequences kept for other runs


class Chunk(NamedTuple):
    """Batches for `steps` training steps of one stage, or with S = 1 the same batch for all of them.

    inputs (S, blocks, n, F, L), targets (S, blocks, T, L), of which `sequences` places are not empty.
    """

    steps: int
    inputs: np.ndarray
    targets: np.ndarray
    sequences: int


def in_blocks(values: Tensor) -> Tensor:
    """(…, B, rest) as blocks (…, ⌈B/L⌉, rest, L) where `rest` is (n, F) or (T,); zeros fill the last block.

    Args:
        values: (S, B, n, F) or (S, B, T).
    """
    blocks = -(-values.shape[1] // LANES)
    if missing := blocks * LANES - values.shape[1]:
        values = torch.cat([values, values.new_zeros(len(values), missing, *values.shape[2:])], 1)
    return values.unflatten(1, (blocks, LANES)).movedim(2, -1).contiguous()


def chunk(batches: list[tuple[Tensor, Tensor]], steps: int) -> Chunk:
    inputs, targets = (in_blocks(torch.stack(parts)).numpy() for parts in zip(*batches, strict=True))
    return Chunk(steps, inputs, targets, len(batches[0][0]))


def training_chunks(config: RunConfig, task: Task) -> Iterator[Chunk]:
    """All that a run trains on, in the order in which `training.train` draws it. Bounded by CHUNK_BYTES each."""
    numbers = sum((steps if config.fresh else 1) * window for window, steps in config.stages()) * config.sequences
    if 4 * 2 * numbers > CHUNK_BYTES:
        return _draw_training(config, task)
    key = (task, config.stages(), config.sequences, config.fresh, config.data_seed)
    return iter(_shared(key, lambda: list(_draw_training(config, task))))


def _draw_training(config: RunConfig, task: Task) -> Iterator[Chunk]:
    data = Generator().manual_seed(config.data_seed)
    for window, steps in config.stages():
        batch = task.sample(config.sequences, window, data)
        if not config.fresh:
            yield chunk([batch], steps)
            continue
        most = max(1, CHUNK_BYTES // sum(4 * part.numel() for part in batch))
        for start in range(0, steps, most):
            length = min(most, steps - start)
            batches = [batch] if start == 0 else []
            while len(batches) < length:
                batches.append(task.sample(config.sequences, window, data))
            yield chunk(batches, length)


def test_chunks(config: RunConfig, task: Task) -> Iterator[Chunk]:
    """The test sequences, a chunk with S = 1 for as many as fit in CHUNK_BYTES."""

    def draw() -> Iterator[Chunk]:
        inputs, targets = task.sample(config.test_sequences, config.window, Generator().manual_seed(config.test_seed))
        size = max(1, CHUNK_BYTES // (4 * (inputs[0].numel() + targets[0].numel()) * LANES)) * LANES
        for batch in zip(inputs.split(size), targets.split(size), strict=True):
            yield chunk([batch], 0)

    if 4 * 2 * config.test_sequences * config.window > SHARED_BYTES // 2:
        return draw()
    return iter(_shared((task, config.window, config.test_sequences, config.test_seed), lambda: list(draw())))


def forget() -> None:
    """Gives up all kept sequences."""
    with _lock:
        _kept.clear()


_kept: OrderedDict[tuple, list[Chunk]] = OrderedDict()
_lock = threading.Lock()


def _shared(key: tuple, draw: Callable[[], list[Chunk]]) -> list[Chunk]:
    """What `draw` gives, drawn once; the least recently used is given up beyond SHARED_BYTES."""
    with _lock:
        if key not in _kept:
            _kept[key] = draw()
        _kept.move_to_end(key)
        while len(_kept) > 1 and sum(c.inputs.nbytes + c.targets.nbytes for kept in _kept.values() for c in kept) > (
            SHARED_BYTES
        ):
            _kept.popitem(last=False)
        return _kept[key]
