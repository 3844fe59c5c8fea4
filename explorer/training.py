"""The plain training loop, as one would write it by hand, and the score on sequences not seen in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from explorer.config import RunConfig
from explorer.models import Model
from explorer.tasks import Task

# Small tensors gain nothing from several threads a run, and the sums stay the same wherever a run is trained. The
# setting belongs to the calling thread, and a new thread starts with all cores: `train` and `score` repeat it.
torch.set_num_threads(1)

MOMENTS = 20
SCORE_NUMBERS = 2**21  # numbers that scoring holds at once, roughly

Listener = Callable[[int, float], None]


class Cancelled(Exception):
    """The run was told to stop."""


class Trained(NamedTuple):
    """What training leaves.

    train_loss: (steps,) loss of each step's batch before its update. moments: (about 20,) training steps, first and
    last included. weights: (moments, parameters) at those steps, flat in the order of `model.parameters()`.
    """

    train_loss: np.ndarray
    moments: np.ndarray
    weights: np.ndarray


def moments(steps: int) -> np.ndarray:
    """About 20 training steps from 0 to `steps`, closer together at the start, where most happens."""
    return np.unique(np.round(np.linspace(0, 1, MOMENTS) ** 2 * steps).astype(int))


def train(
    config: RunConfig,
    model: Model,
    task: Task,
    listen: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Trained:
    """Trains the model in place with Adam on the mean squared error.

    Args:
        listen: called after every step with the number of steps done and the step's loss.
        cancelled: asked before every step.

    Raises:
        Cancelled: `cancelled` said so.
    """
    torch.set_num_threads(1)
    parameters = list(model.parameters())
    if not parameters:
        return Trained(np.empty(0, np.float32), np.zeros(1, int), np.empty((1, 0), np.float32))
    data = Generator().manual_seed(config.data_seed)
    adam = torch.optim.Adam(parameters, lr=config.learning_rate)
    keep = moments(config.steps)
    kept = [_flat(parameters)]
    losses: list[float] = []
    for window, steps in config.stages():
        inputs, targets = task.sample(config.sequences, window, data)
        for step in range(steps):
            if cancelled():
                raise Cancelled
            if config.fresh and step > 0:
                inputs, targets = task.sample(config.sequences, window, data)
            loss = mse_loss(model(inputs)[:, : targets.shape[1]], targets)
            adam.zero_grad()
            loss.backward()
            if config.clip is not None:
                clip_grad_norm_(parameters, config.clip)
            adam.step()
            losses.append(loss.item())
            if len(losses) == keep[len(kept)]:
                kept.append(_flat(parameters))
            if listen:
                listen(len(losses), losses[-1])
    return Trained(np.array(losses, np.float32), keep, np.stack(kept))


class Score(NamedTuple):
    """On the test sequences: the mean squared error, and r², the squared correlation of prediction and target,
    averaged over targets and 0 where a prediction does not vary."""

    loss: float
    r2: float


@torch.no_grad()
def score(config: RunConfig, model: Model, task: Task, cancelled: Callable[[], bool] = lambda: False) -> Score:
    """Scores a model on `config.test_sequences` sequences drawn from `config.test_seed`."""
    torch.set_num_threads(1)
    inputs, targets = task.sample(config.test_sequences, config.window, Generator().manual_seed(config.test_seed))
    # Weights over the sequence are held for each sequence only where they depend on it.
    held = max(config.hidden, targets.shape[1]) if config.keys == "position+content" else config.hidden
    size = max(1, SCORE_NUMBERS // (config.window * held))
    predictions = []
    for part in inputs.split(size):
        if cancelled():
            raise Cancelled
        predictions.append(model(part))
    return scored(torch.cat(predictions), targets)


def scored(prediction: torch.Tensor, target: torch.Tensor) -> Score:
    """The score of predictions (B, T) against targets (B, T)."""
    prediction, target = prediction.double(), target.double()
    error = prediction - target
    prediction, target = prediction - prediction.mean(0), target - target.mean(0)
    spread = (prediction**2).mean(0) * (target**2).mean(0)  # (T,)
    r2 = torch.where(spread > 1e-14, (prediction * target).mean(0) ** 2 / spread.clamp_min(1e-14), 0.0)
    return Score((error**2).mean().item(), r2.mean().item())


def _flat(parameters: list[torch.nn.Parameter]) -> np.ndarray:
    return parameters_to_vector(parameters).detach().numpy().copy()
