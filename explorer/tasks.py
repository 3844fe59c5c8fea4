"""The tasks: each makes its sequences and knows what can be said about it in closed form.

Inputs are independent and uniform on (0, 1), one number a step; their variance is 1/12.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from explorer.config import Shape

VARIANCE = 1 / 12  # of one input, uniform on (0, 1)


class Level(NamedTuple):
    """A mean squared error known without training: what it means, how it is written, and its value."""

    label: str
    formula: str
    value: float


class Task(ABC):
    """One contract for all tasks."""

    label: str  # as menus show it
    sentence: str  # what the network is asked for

    @abstractmethod
    def shape(self, window: int) -> Shape:
        """Numbers read a step, numbers to answer, and a target's mean, for sequences of `window` steps."""

    @abstractmethod
    def sample(self, count: int, window: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws `count` sequences.

        Returns:
            Inputs (count, window, features) and targets (count, targets), float32. The same generator state gives the
            same sequences.
        """

    @abstractmethod
    def levels(self, window: int, hidden: int) -> dict[str, Level]:
        """Closed forms of the mean squared error at this window.

        A key that is a baseline's name (`mean`, `constant`) belongs to that baseline; any other is a limit that holds
        for a class of models.
        """


class FirstValue(Task):
    """Report the first value at the end. One number to keep: not a question of capacity."""

    label = "First value"
    sentence = "reads a sequence and must report its first value at the end"

    def shape(self, window):
        return Shape(features=1, targets=1, expected=0.5)

    def sample(self, count, window, generator):
        inputs = torch.rand(count, window, 1, generator=generator)  # (count, window, 1)
        return inputs, inputs[:, 0, :].clone()

    def levels(self, window, hidden):
        # E(x_1 − mean)² = Var(x_1) − Var(mean) = (1/12)(1 − 1/n)
        return {
            "constant": Level("Knows nothing", "1/12", VARIANCE),
            "mean": Level("Mean of the window", "(1/12)(1 − 1/n)", VARIANCE * (1 - 1 / window)),
        }


class AnyPosition(FirstValue):
    """Report every value at the end: n numbers, however small the vector that carries them."""

    label = "Any position"
    sentence = "reads a sequence and must report every one of its values at the end"

    def shape(self, window):
        return Shape(features=1, targets=window, expected=0.5)

    def sample(self, count, window, generator):
        inputs = torch.rand(count, window, 1, generator=generator)  # (count, window, 1)
        return inputs, inputs[:, :, 0].clone()

    def levels(self, window, hidden):
        # H numbers, read linearly, span at most H of the n directions of the inputs, each of variance 1/12: the error
        # left, averaged over the n targets, is at least (1/12)(n − H)/n. The mean of the window is the case H = 1.
        bound = VARIANCE * max(0.0, 1 - hidden / window)
        return super().levels(window, hidden) | {
            "bound": Level(f"Limit of {hidden} numbers", f"(1/12)(1 − {hidden}/n)", bound)
        }


TASKS: dict[str, Task] = {"first": FirstValue(), "any": AnyPosition()}


def task_named(name: str) -> Task:
    """The task of that name. Raises ValueError naming those that exist."""
    if name not in TASKS:
        raise ValueError(f"task is {name!r}; it must be one of {', '.join(TASKS)}")
    return TASKS[name]
