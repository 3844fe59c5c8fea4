"""What one training run is: plain values, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

POSITIONS = ("learned", "sinusoidal", "none")
KEYS = ("position", "position+content")
STARTS = ("default", "orthogonal", "identity", "chrono")

SEED_LIMIT = 2**31 - 1
RANGES = {
    "window": (2, 1024),
    "hidden": (1, 64),
    "width": (1, 128),
    "steps": (0, 5000),
    "sequences": (1, 4096),
    "test_sequences": (2, 65536),
    "init_seed": (0, SEED_LIMIT),
    "data_seed": (0, SEED_LIMIT),
    "test_seed": (0, SEED_LIMIT),
}
CHOICES = {"positions": POSITIONS, "keys": KEYS, "start": STARTS}
LEARNING_RATE_RANGE = (1e-6, 1.0)
CLIP_RANGE = (1e-6, 1e6)
NUMBERS = {"learning_rate": LEARNING_RATE_RANGE, "clip": CLIP_RANGE}


class Shape(NamedTuple):
    """What a task asks of a model, so that the two need not know each other."""

    features: int  # numbers read at each step
    targets: int  # numbers to answer at the end
    expected: float  # the mean of a target: what one says who knows nothing


@dataclass(frozen=True)
class RunConfig:
    """One training run. Two equal configs give the same numbers.

    Args:
        task, model: names in the tables TASKS and MODELS; looked up when the run is made.
        window: steps in a sequence (n), 2 to 1024.
        hidden: units of a recurrent model's hidden state (H), 1 to 64.
        width: width of attention's position, key and query vectors (d), 1 to 128.
        positions: where attention's positions come from: learned, sinusoidal or none.
        keys: what attention's keys are made of: position, or position+content.
        start: starting weights of a recurrent model: default, orthogonal, identity or chrono.
        steps: training steps of Adam, 0 to 5000.
        learning_rate: Adam's rate, above 0 to 1.
        clip: largest allowed norm of the gradient; None leaves it as it is.
        sequences: sequences in the batch of each training step, 1 to 4096.
        fresh: draw new sequences for every step, instead of the same ones throughout.
        init_seed, data_seed, test_seed: seeds of the starting weights, training and test sequences.
        test_sequences: sequences that the test loss is measured on.
        curriculum: pairs (window, steps) trained in this order; empty means the window throughout. The last window is
            `window`, and the steps add up to `steps`.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    task: str = "first"
    model: str = "rnn"
    window: int = 32
    hidden: int = 8
    width: int = 16
    positions: str = "learned"
    keys: str = "position"
    start: str = "default"
    steps: int = 60
    learning_rate: float = 0.01
    clip: float | None = None
    sequences: int = 32
    fresh: bool = False
    init_seed: int = 1
    data_seed: int = 10
    test_sequences: int = 4096
    test_seed: int = 20
    curriculum: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not _whole(value) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        for name in ("task", "model"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a name")
        for name, limits in NUMBERS.items():
            value = getattr(self, name)
            if value is None and name == "clip":
                continue
            _check_number(name, value, *limits)
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are one config: let them be written alike
        if not isinstance(self.fresh, bool):
            raise ValueError(f"fresh is {self.fresh!r}; it must be True or False")
        self._check_curriculum()

    def _check_curriculum(self):
        low, high = RANGES["window"]
        stages = self.curriculum
        if not isinstance(stages, tuple) or not all(
            isinstance(stage, tuple) and len(stage) == 2 and all(map(_whole, stage)) for stage in stages
        ):
            raise ValueError(f"curriculum is {stages!r}; it must be pairs (window, steps) of whole numbers")
        if not stages:
            return
        if any(not low <= window <= high or steps < 0 for window, steps in stages):
            raise ValueError(f"curriculum is {stages!r}; its windows must be {low} to {high} and its steps 0 or more")
        if any(window > self.window for window, _ in stages) or stages[-1][0] != self.window:
            raise ValueError(f"curriculum is {stages!r}; it must end at window {self.window} and never go above it")
        if sum(steps for _, steps in stages) != self.steps:
            raise ValueError(f"curriculum is {stages!r}; its steps must add up to steps, {self.steps}")

    def stages(self) -> tuple[tuple[int, int], ...]:
        """The pairs (window, steps) that training goes through."""
        return self.curriculum or ((self.window, self.steps),)

    def to_dict(self) -> dict:
        """Every field as plain JSON values, in the order above."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"curriculum": [list(stage) for stage in self.curriculum]}

    @classmethod
    def from_dict(cls, values: dict) -> RunConfig:
        """The config that `to_dict` wrote. Raises ValueError for fields that do not exist."""
        known = {field.name for field in fields(cls)}
        if foreign := sorted(set(values) - known):
            raise ValueError(
                f"{', '.join(map(repr, foreign))} is no setting; the settings are {', '.join(sorted(known))}"
            )
        values = dict(values)
        if isinstance(stages := values.get("curriculum"), list):
            values["curriculum"] = tuple(tuple(stage) if isinstance(stage, list) else stage for stage in stages)
        return cls(**values)


def _whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_number(name: str, value, low: float, high: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
