"""What a picture shows, as a sentence computed from its numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from explorer.models import MODELS

# A median within this share of the baseline's loss is called "no better", not "worse": the test's standard error.
MARGIN = 0.03


def curve_finding(summary: pd.DataFrame, mean: dict[int, float]) -> str:
    """What the loss against window length says.

    Args:
        summary: a `summary_table`.
        mean: for each window, the loss of guessing the mean.
    """
    trained = summary[summary["model"].map(lambda name: bool(MODELS[name].reads))]
    if trained.empty:
        if summary.empty:
            return "Nothing is trained yet"
        first = summary.iloc[0]
        losses = summary.loc[summary["model"] == first["model"], "median"]
        span = f"{losses.min():.4f}" + (f" to {losses.max():.4f}" if len(losses) > 1 else "")
        return f"{first['label']} learns nothing and misses by {span}"
    phrases: dict[str, list[str]] = {}
    for _, rows in trained.groupby("label", sort=False):
        phrases.setdefault(_curve_phrase(rows.sort_values("window"), mean), []).append(rows["label"].iloc[0])
    # Trouble first: it is what the reader came to see.
    ordered = sorted(phrases.items(), key=lambda item: "solve" in item[0])
    return capitalised("; ".join(_filled(phrase, labels) for phrase, labels in ordered))


def _curve_phrase(rows: pd.DataFrame, mean: dict[int, float]) -> str:
    windows = rows["window"].tolist()
    # A run that diverged has no loss: where half of them did, the model is lost whatever the others' median.
    losses = np.where(rows["diverged"] * 2 >= rows["runs"], np.inf, rows["median"].fillna(np.inf))
    ratios = losses / [mean[window] for window in windows]
    solved = (rows["solved"] > 0.5).tolist()
    easy = next((place for place, ok in enumerate(solved) if not ok), len(solved))
    mostly = " with most seeds" if (rows["solved"][: easy or None] < 1).any() else ""
    lost = [place for place, ratio in enumerate(ratios) if ratio > 1 - MARGIN and not solved[place]]
    if all(solved):
        where = "every window" if len(windows) > 1 else f"window {windows[0]}"
        return f"{{who}} solve{{s}} {where}{mostly}"
    if lost:
        verb = "worse" if all(ratios[place] > 1 + MARGIN for place in lost) else "no better"
        return f"{_places(lost, windows)}, {{who}} {{be}} {verb} than guessing the mean"
    if easy:
        return f"{{who}} solve{{s}} windows up to {windows[easy - 1]}{mostly} and beat{{s}} guessing the mean beyond"
    return "{who} beat{s} guessing the mean but solve{s} " + ("only some windows" if any(solved) else "no window")


def _places(places: list[int], windows: list[int]) -> str:
    """Which of the windows, as the start of a sentence."""
    named = [str(windows[place]) for place in places]
    if len(places) == len(windows) > 1:
        return "at every window"
    if len(places) == 1:
        return f"at window {named[0]}"
    if places[-1] - places[0] == len(places) - 1 and places[-1] == len(windows) - 1:
        return f"from window {named[0]} on"
    return (
        f"at windows {named[0]} and {named[1]}" if len(places) == 2 else f"at {len(places)} of {len(windows)} windows"
    )


def _filled(phrase: str, labels: list[str]) -> str:
    one = len(labels) == 1
    return phrase.format(who=names(labels), s="s" if one else "", be="is" if one else "are")


def hidden_finding(label: str, prediction: np.ndarray, target: np.ndarray, trained: bool = True) -> str:
    """What the last hidden state is good for: the answer read from it against the truth, both (T,)."""
    state = "its last state" if trained else "its untrained last state"
    if not np.isfinite(prediction).all():
        return f"Training the {label} diverged: its weights are no longer numbers"
    if len(target) == 1:
        off = abs(prediction[0] - target[0])
        return f"From {state} the {label} reads {prediction[0]:.2f}; the first value was {target[0]:.2f}" + (
            "" if off >= 0.01 else ", as it should"
        )
    error = float(np.sqrt(np.mean((prediction - target) ** 2)))
    guess = float(np.sqrt(np.mean((0.5 - target) ** 2)))
    return (
        f"From {state} the {label} recovers the {len(target)} values to within {error:.2f}; guessing 0.50 misses by "
        f"{guess:.2f}"
    )


def attention_finding(weights: pd.DataFrame, trained: bool = True) -> str:
    """Where attention looks: from an `attention_table`."""
    who = "Attention" if trained else "Untrained attention"
    if not np.isfinite(weights["weight"]).all():
        return "Training attention diverged: its weights are no longer numbers"
    steps, targets = int(weights["step"].max()), int(weights["target"].max())
    own = weights[weights["step"] == weights["target"]]["weight"]
    if targets > 1:
        queries = f"{targets} {'' if trained else 'untrained '}queries"
        return f"Each of the {queries} puts {own.mean():.0%} of its weight on its own step, on average"
    top = weights.loc[weights["weight"].idxmax()]
    if top["weight"] < 1.25 / steps and weights["weight"].min() > 0.75 / steps:
        return f"{who} spreads its weight evenly: at most {top['weight']:.0%} on any of the {steps} steps"
    share = (
        "all" if top["weight"] > 0.9995 else f"{top['weight']:.0%}" if top["weight"] < 0.995 else f"{top['weight']:.1%}"
    )
    share += "" if share == "all" else " of"
    return f"{who} puts {share} its weight on step {int(top['step'])} of {steps}"


def names(labels: Iterable[str]) -> str:
    """ "RNN", "RNN and GRU", "RNN, GRU and LSTM", with the article that running text wants."""
    words = [label.lower() if label == "Attention" else f"the {label}" for label in labels]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def capitalised(sentence: str) -> str:
    """The sentence with a capital first letter, the rest as it is."""
    return sentence[:1].upper() + sentence[1:]
