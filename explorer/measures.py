"""Results → tidy tables. Steps, units and targets count from 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from explorer.config import RunConfig
from explorer.experiment import RunResult, restore, run
from explorer.models import MODELS
from explorer.tasks import Level, task_named

SOLVED = 0.01  # mean squared error below which a run counts as solved


def runs_table(results: Sequence[RunResult]) -> pd.DataFrame:
    """A row a run: model, label, window, init_seed, data_seed, test_loss, r2, parameters, seconds, solved."""
    rows = [
        {
            "model": result.config.model,
            "label": MODELS[result.config.model].label,
            "window": result.config.window,
            "init_seed": result.config.init_seed,
            "data_seed": result.config.data_seed,
            "test_loss": result.test_loss,
            "r2": result.r2,
            "parameters": result.parameters,
            "seconds": result.seconds,
        }
        for result in results
    ]
    columns = ["model", "label", "window", "init_seed", "data_seed", "test_loss", "r2", "parameters", "seconds"]
    table = pd.DataFrame(rows, columns=columns).astype({"test_loss": float, "r2": float})
    return table.assign(solved=table["test_loss"] < SOLVED)


def summary_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each model and window of a `runs_table`: runs, median, lowest, highest test loss and the solved share.

    A run whose loss is not finite counts in `runs` and `diverged`, is never solved, and takes no part in the rest.
    """
    finite = runs["test_loss"].where(np.isfinite(runs["test_loss"]))
    groups = runs.assign(loss=finite).groupby(["model", "window"], sort=False)
    table = groups.agg(
        label=("label", "first"),
        runs=("loss", "size"),
        median=("loss", "median"),
        lowest=("loss", "min"),
        highest=("loss", "max"),
        solved=("solved", "mean"),
        diverged=("loss", lambda losses: int(losses.isna().sum())),
        parameters=("parameters", "first"),
        seconds=("seconds", "sum"),
    ).reset_index()
    order = {name: place for place, name in enumerate(MODELS)}
    return table.sort_values(["model", "window"], key=lambda c: c.map(order) if c.name == "model" else c).reset_index(
        drop=True
    )


def levels(config: RunConfig, window: int) -> dict[str, Level]:
    """The task's closed forms at a window, for the config's hidden units."""
    return task_named(config.task).levels(window, config.hidden)


def levels_table(config: RunConfig, windows: Sequence[int]) -> pd.DataFrame:
    """The task's closed forms: a row for each key and window, with label, formula and value."""
    return pd.DataFrame(
        [
            {"key": key, "window": window, **level._asdict()}
            for window in windows
            for key, level in levels(config, window).items()
        ]
    )


def guessing_the_mean(summary: pd.DataFrame, levels: pd.DataFrame) -> dict[int, float]:
    """For each window the loss of guessing the mean: measured on the same sequences where it was, else closed form."""
    forms = levels[levels["key"] == "mean"].set_index("window")["value"]
    measured = summary[summary["model"] == "mean"].set_index("window")["median"]
    return forms.to_dict() | measured.to_dict()


def untrained(config: RunConfig) -> RunResult:
    """The config's run before its first training step, to look inside while the training goes on."""
    return run(replace(config, steps=0, curriculum=(), test_sequences=2))


def moment_at(result: RunResult, step: int | None) -> int:
    """The index into `result.moments` of a training step; None means the last.

    Raises:
        ValueError: no weights were kept at that step; the message lists those that were.
    """
    if step is None:
        return len(result.moments) - 1
    kept = result.moments.tolist()
    if step not in kept:
        raise ValueError(f"moment is {step}; weights were kept at training steps {', '.join(map(str, kept))}")
    return kept.index(step)


def sequence(config: RunConfig, seed: int) -> tuple[Tensor, Tensor]:
    """One sequence that no run was trained on: inputs (1, n, F) and targets (1, T)."""
    return task_named(config.task).sample(1, config.window, Generator().manual_seed(seed))


@torch.no_grad()
def answer(result: RunResult, inputs: Tensor, moment: int = -1) -> np.ndarray:
    """The model's predictions (T,) for one sequence (1, n, F)."""
    return restore(result, moment)(inputs)[0].numpy()


@torch.no_grad()
def hidden_table(result: RunResult, inputs: Tensor, moment: int = -1) -> pd.DataFrame:
    """The hidden state h_t of a recurrent run over one sequence (1, n, F): a row for each step and unit, with value.

    Raises:
        ValueError: the model has no hidden state.
    """
    _require(result, "hidden", "hidden state")
    states = restore(result, moment).hidden_states(inputs)[0].numpy()  # (n, H)
    return _long(states, ("step", "unit", "value"))


@torch.no_grad()
def attention_table(result: RunResult, inputs: Tensor, moment: int = -1) -> pd.DataFrame:
    """The attention weights over one sequence (1, n, F): a row for each target and step, with weight.

    Raises:
        ValueError: the model has no attention weights.
    """
    _require(result, "attention", "attention weights")
    weights = restore(result, moment).weights(inputs)[0].numpy()  # (T, n)
    return _long(weights, ("target", "step", "weight"))


def _require(result: RunResult, inside: str, what: str) -> None:
    if MODELS[result.config.model].inside != inside:
        having = ", ".join(name for name, model in MODELS.items() if model.inside == inside)
        raise ValueError(f"model is {result.config.model!r}, which has no {what}; it must be one of {having}")


def _long(values: np.ndarray, names: tuple[str, str, str]) -> pd.DataFrame:
    rows, columns = (index.ravel() + 1 for index in np.indices(values.shape))
    return pd.DataFrame(dict(zip(names, (rows, columns, values.ravel()), strict=True)))
