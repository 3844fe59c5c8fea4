"""Run one config, or many: read this first.

    result = run(RunConfig(model="attention", window=32))
    print(result.test_loss, result.r2)

Everything the explorer shows is made of such results.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.metadata import version

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from explorer import engine, training
from explorer.config import RunConfig
from explorer.models import MODELS, Model, Recurrent, build, model_named
from explorer.tasks import task_named
from explorer.training import Cancelled, Listener

__all__ = ["CODE_VERSION", "Cancelled", "RunResult", "canonical", "grid", "restore", "run", "sweep"]

# Stored results are found by config and by this number. It goes up with every change to config, tasks, models or
# training that may change a result; a test watches over it.
CODE_VERSION = 1

# Fields that only some models read.
OPTIONAL_FIELDS = tuple({name: None for model in MODELS.values() for name in model.reads})

MEMORY_LIMIT = 4 * 2**30


@dataclass(frozen=True, eq=False)
class RunResult:
    """What one run gave.

    train_loss: (steps,) loss of each training step's batch. test_loss, r2: on the test sequences, see
    `training.Score`. moments, weights: see `training.Trained`. parameters: numbers that training may change.
    seconds: training and scoring took this long. versions: of this package and of torch.
    """

    config: RunConfig
    train_loss: np.ndarray
    test_loss: float
    r2: float
    moments: np.ndarray
    weights: np.ndarray
    parameters: int
    seconds: float
    versions: dict[str, str]

    def to_dict(self) -> dict:
        """The config's fields and the run's numbers as plain JSON values; null for what is not finite."""
        numbers = {
            "train_loss": float(self.train_loss[-1]) if len(self.train_loss) else float("nan"),
            "test_loss": self.test_loss,
            "r2": self.r2,
            "parameters": self.parameters,
            "seconds": self.seconds,
        }
        return self.config.to_dict() | {k: v if np.isfinite(v) else None for k, v in numbers.items()}


@lru_cache(maxsize=8192)
def canonical(config: RunConfig) -> RunConfig:
    """The same run with every field that its model does not read at its default, so that equal runs are equal configs.

    Raises:
        ValueError: the task or model does not exist, the model lacks these starting weights, or the run would not fit
            in memory.
    """
    kind = model_named(config.model)
    task = task_named(config.task)
    unread = {f.name: f.default for f in fields(RunConfig) if f.name in OPTIONAL_FIELDS and f.name not in kind.reads}
    if config.positions == "none" and config.keys == "position" and "positions" in kind.reads:
        # Every step scores the same: no weight has a gradient, wherever it starts and however it is followed.
        unread |= {f.name: f.default for f in fields(RunConfig) if f.name in ("init_seed", "learning_rate", "clip")}
    if len(config.curriculum) == 1:
        unread["curriculum"] = ()
    config = replace(config, **unread)
    if config.start not in kind.starts:
        raise ValueError(f"start is {config.start!r}; {kind.label} takes {', '.join(kind.starts)}")
    targets = task.shape(config.window).targets
    if issubclass(kind, Recurrent):
        per_step = 12 * config.hidden
    else:
        per_step = 4 * (targets if config.keys == "position+content" else 1)
    if (needed := 4 * config.window * per_step * config.sequences) > MEMORY_LIMIT:
        raise ValueError(
            f"sequences is {config.sequences}; at window {config.window} a training step would need about "
            f"{needed / 2**30:.0f} GB of memory, and {MEMORY_LIMIT / 2**30:.0f} GB is the limit"
        )
    return config


def run(
    config: RunConfig,
    listen: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    reference: bool = False,
) -> RunResult:
    """Trains and scores one config: on the engine where that is ready and knows the model, else by the plain loop.

    Args:
        listen: called now and then, by the plain loop after every training step, with the number of steps done and the
            last step's loss.
        cancelled: asked at least every 50 ms.
        reference: use the plain loop in any case. The numbers agree to about 1e-6.

    Raises:
        ValueError: see `canonical`.
        Cancelled: `cancelled` said so.
    """
    config = canonical(config)
    start = time.perf_counter()
    if not reference and engine.ready(config):
        trained, scored = engine.run(config, cancelled, listen)
    else:
        task = task_named(config.task)
        model = build(config, task.shape(config.window))
        trained = training.train(config, model, task, listen, cancelled)
        scored = training.score(config, model, task, cancelled)
    return RunResult(
        config=config,
        test_loss=scored.loss,
        r2=scored.r2,
        parameters=trained.weights.shape[1],
        seconds=time.perf_counter() - start,
        versions=versions(),
        **trained._asdict(),
    )


@lru_cache
def versions() -> dict[str, str]:
    """Of this package and of torch, as results are marked with."""
    return {"explorer": version("why-attention-explorer"), "torch": torch.__version__}


def sweep(configs: Iterable[RunConfig], run: Callable[[RunConfig], RunResult] = run) -> Iterator[RunResult]:
    """Results of the configs, in order, each run once even where two configs come to the same run."""
    done: dict[RunConfig, RunResult] = {}
    for config in configs:
        key = canonical(config)
        if key not in done:
            done[key] = run(key)
        yield replace(done[key], config=config)


def grid(
    base: RunConfig,
    models: Sequence[str],
    windows: Sequence[int],
    init_seeds: Sequence[int],
    data_seeds: Sequence[int],
) -> list[RunConfig]:
    """Every combination as a config, the most telling first: all windows of all models for one seed, then the next.

    Runs that would repeat another one, such as a baseline's under a second weight seed, are left out.

    Raises:
        ValueError: see `RunConfig` and `canonical`.
    """
    configs = (
        replace(base, model=model, window=window, init_seed=init_seed, data_seed=data_seed)
        for data_seed, init_seed, window, model in itertools.product(data_seeds, init_seeds, windows, models)
    )
    unique: dict[RunConfig, RunConfig] = {}
    for config in configs:
        unique.setdefault(canonical(config), config)
    return list(unique.values())


def restore(result: RunResult, moment: int = -1) -> Model:
    """The run's model as it was at `result.moments[moment]`, in evaluation use: no gradients are kept for weights."""
    torch.set_num_threads(1)  # as in training: in whichever thread, the same sums
    config = canonical(result.config)
    model = build(config, task_named(config.task).shape(config.window))
    vector_to_parameters(torch.from_numpy(result.weights[moment].copy()), model.parameters())
    return model.requires_grad_(False)
