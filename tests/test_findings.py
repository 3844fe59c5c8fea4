"""Each sentence is true of the numbers it was made from."""

import re

import numpy as np
import pandas as pd
import pytest

from explorer.findings import (
    MARGIN,
    attention_finding,
    capitalised,
    curve_finding,
    hidden_finding,
    names,
)
from explorer.measures import summary_table
from explorer.models import MODELS

TRAINED = [name for name, kind in MODELS.items() if kind.reads]
BASELINES = [name for name, kind in MODELS.items() if not kind.reads]
WINDOWS = (4, 8, 16, 32)
GUESS = dict.fromkeys(WINDOWS, 0.08)


def summary(losses):
    """The summary of {model: a loss, or a list of losses, for each of WINDOWS}."""
    rows = [
        {"model": model, "label": MODELS[model].label, "window": window, "test_loss": loss, "solved": loss < 0.01}
        for model, of_windows in losses.items()
        for window, seeds in zip(WINDOWS, of_windows, strict=False)
        for loss in np.atleast_1d(seeds).astype(float)
    ]
    return summary_table(pd.DataFrame(rows).assign(parameters=97, seconds=1.0))


def finding(losses, mean=GUESS):
    return curve_finding(summary(losses), mean)


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ({"attention": [0.001, 0.002, 0.003, 0.009]}, "Attention solves every window"),
        ({"rnn": [0.001]}, "The RNN solves window 4"),
        ({"rnn": [0.02, 0.05, 0.12, 0.17]}, "From window 16 on, the RNN is worse than guessing the mean"),
        ({"rnn": [0.02, 0.05, 0.07, 0.17]}, "At window 32, the RNN is worse than guessing the mean"),
        ({"rnn": [0.1, 0.12, 0.13, 0.17]}, "At every window, the RNN is worse than guessing the mean"),
        ({"rnn": [0.17]}, "At window 4, the RNN is worse than guessing the mean"),
        ({"rnn": [0.02, 0.05, 0.08, 0.0799]}, "From window 16 on, the RNN is no better than guessing the mean"),
        ({"rnn": [0.02, 0.05, 0.08, 0.17]}, "From window 16 on, the RNN is no better than guessing the mean"),
        ({"rnn": [0.08, 0.08, 0.08, 0.08]}, "At every window, the RNN is no better than guessing the mean"),
        ({"rnn": [0.02, 0.05, 0.07, 0.06]}, "The RNN beats guessing the mean but solves no window"),
        ({"rnn": [0.02, 0.005, 0.07, 0.005]}, "The RNN beats guessing the mean but solves only some windows"),
        (
            {"rnn": [0.001, 0.002, 0.07, 0.005]},
            "The RNN solves windows up to 8 and beats guessing the mean beyond",
        ),
    ],
)
def test_the_finding_says_what_the_losses_say(losses, sentence):
    assert finding(losses) == sentence


def test_models_that_do_alike_share_a_sentence_and_trouble_comes_first():
    losses = {
        "attention": [0.001] * 4,
        "rnn": [0.02, 0.05, 0.12, 0.17],
        "gru": [0.002, 0.05, 0.2, 0.1],
        "lstm": [0.001] * 4,
        "mean": [0.08] * 4,
    }
    assert finding(losses) == (
        "From window 16 on, the RNN and the GRU are worse than guessing the mean; the LSTM and attention solve every "
        "window"
    )


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ([0.05] * 4, "The RNN and attention beat guessing the mean but solve no window"),
        ([0.001, 0.05, 0.05, 0.05], "The RNN and attention solve windows up to 4 and beat guessing the mean beyond"),
        ([0.08] * 4, "At every window, the RNN and attention are no better than guessing the mean"),
    ],
)
def test_verbs_are_plural_for_several_models(losses, sentence):
    assert finding({"rnn": losses, "attention": losses}) == sentence


@pytest.mark.parametrize("model", TRAINED)
def test_every_model_can_be_the_subject(model):
    sentence = finding({model: [0.001] * 4})
    assert sentence.endswith(" solves every window")
    assert MODELS[model].label in sentence


@pytest.mark.parametrize("model", BASELINES)
def test_baselines_alone_are_said_to_learn_nothing(model):
    sentence = finding({model: [0.0623, 0.0729, 0.0781, 0.0812]})
    assert sentence == f"{MODELS[model].label} learns nothing and misses by 0.0623 to 0.0812"


def test_the_mean_measured_on_the_same_sequences_is_the_mark_not_a_fixed_number():
    losses = {"rnn": [0.07] * 4}
    assert "beats" in finding(losses, dict.fromkeys(WINDOWS, 0.08))
    assert "worse" in finding(losses, dict.fromkeys(WINDOWS, 0.06))
    mixed = {4: 0.08, 8: 0.08, 16: 0.06, 32: 0.06}
    assert finding(losses, mixed) == "From window 16 on, the RNN is worse than guessing the mean"


def test_nothing_trained_yet_is_said():
    empty = pd.DataFrame(columns=summary({"rnn": [0.1]}).columns)
    assert curve_finding(empty, {}) == "Nothing is trained yet"


# Truth: read every claim back out of the sentence and check it against the losses.

CLAIM = re.compile(
    r"(?P<who>.+) (solves? (?P<solved>every window|window \d+|windows up to \d+)(?P<most> with most seeds)?"
    r"(?P<beyond> and beats? guessing the mean beyond)?"
    r"|beats? guessing the mean but solves? (?P<beats>no window|only some windows))"
    r"|(?P<where>[^,]*?\bwindow.*?), (?P<lost>.+) (is|are) (?P<verb>worse|no better) than guessing the mean",
    re.IGNORECASE,
)


def windows_meant(words, windows):
    """The windows that "every window", "from window 16 on", "windows 8 and 16", "2 of 4 windows" … stand for; a number
    where only their count is told."""
    words = words.lower()
    if words.endswith("every window"):
        return windows
    if counted := re.fullmatch(r"at (\d+) of (\d+) windows", words):
        assert int(counted[2]) == len(windows)
        return int(counted[1])
    numbers = [int(number) for number in re.findall(r"\d+", words)]
    assert set(numbers) <= set(windows)
    if "up to" in words:
        return [window for window in windows if window <= numbers[0]]
    if words.startswith("from window"):
        return [window for window in windows if window >= numbers[0]]
    return numbers


def assert_true(sentence, table, mean):
    """Every claim of the sentence holds, and every trained model is spoken of once."""
    spoken = []
    for clause in sentence.split("; "):
        claim = CLAIM.fullmatch(clause)
        assert claim, f"a clause this test cannot check: {clause}"
        labels = re.split(r", (?:the )?| and (?:the )?|^the ", claim["who"] or claim["lost"], flags=re.IGNORECASE)
        labels = [label.lower() for label in labels if label]
        spoken += labels
        for label in labels:
            rows = table[table["label"].str.lower() == label].sort_values("window")
            windows = rows["window"].tolist()
            loss = {row.window: row.median for row in rows.itertuples()}
            share = {row.window: row.solved for row in rows.itertuples()}
            broken = {row.window: row.diverged / row.runs for row in rows.itertuples()}

            def beats(window, loss=loss, broken=broken):
                return loss[window] < mean[window] and broken[window] < 0.5

            def is_solved(window, share=share):
                return share[window] > 0.5

            def is_lost(window, loss=loss, broken=broken, verb=claim["verb"]):
                mark = mean[window] if verb == "worse" else mean[window] * (1 - MARGIN)
                return not loss[window] <= mark or broken[window] >= 0.5

            if claim["solved"]:
                meant = windows_meant(claim["solved"], windows)
                assert all(is_solved(window) if claim["most"] else share[window] == 1 for window in meant)
                rest = [window for window in windows if window not in meant]
                assert bool(rest) == bool(claim["beyond"])
                assert all(map(beats, rest))
            elif claim["beats"]:
                assert all(map(beats, windows))
                assert any(map(is_solved, windows)) == (claim["beats"] == "only some windows")
                assert not all(map(is_solved, windows))
            else:
                meant = windows_meant(claim["where"], windows)
                lost = [window for window in windows if is_lost(window)]
                assert len(lost) >= meant if isinstance(meant, int) else set(meant) <= set(lost)
    assert sorted(spoken) == sorted(MODELS[name].label.lower() for name in set(table["model"]) & set(TRAINED))


LEVELS = (0.0005, 0.005, 0.0095, 0.0105, 0.05, 0.0775, 0.0785, 0.0799, 0.0801, 0.0815, 0.083, 0.17)


@pytest.mark.parametrize("seed", range(4))
def test_no_claim_about_random_losses_is_false(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        count = random.integers(1, 5)
        models = random.choice(TRAINED, random.integers(1, len(TRAINED) + 1), replace=False)
        # Losses mostly grow with the window, as real ones do, but not always.
        losses = {model: np.sort(random.choice(LEVELS, count)) for model in models}
        for model in models:
            if random.random() < 0.4:
                random.shuffle(losses[model])
        table = summary(losses)
        mean = {window: 0.08 + random.choice([0, 0.002]) for window in WINDOWS}
        assert_true(curve_finding(table, mean), table, mean)


@pytest.mark.parametrize(
    "losses",
    [
        [0.001, 0.17, 0.03, 0.02],  # solved, lost, found again
        [0.17, 0.03, 0.03, 0.03],  # lost at the shortest window only
        [0.17, 0.005, 0.17, 0.005],
        [0.08, 0.05, 0.08, 0.05],
        [0.17, 0.005, 0.005, 0.17],
    ],
)
def test_losses_that_do_not_grow_with_the_window_are_told_truly(losses):
    table = summary({"rnn": losses})
    assert_true(curve_finding(table, GUESS), table, GUESS)


@pytest.mark.parametrize(
    "seeds",
    [
        [0.001, 0.018],  # the median is below the mark, half of the seeds are not
        [0.001, 0.002, 0.018],
        [0.001, 0.018, 0.05],
    ],
)
def test_seeds_that_did_not_solve_it_are_not_passed_over(seeds):
    table = summary({"rnn": [seeds, seeds], "gru": [[0.001], seeds]})
    sentence = curve_finding(table, GUESS)
    assert_true(sentence, table, GUESS)
    assert ("with most seeds" in sentence) == (np.mean(np.array(seeds) < 0.01) > 0.5)


@pytest.mark.parametrize(
    "seeds",
    [
        [np.nan, np.nan, np.inf],  # none left
        [np.nan, np.nan, 0.001],  # the one that is left solved it
        [np.nan, np.inf, 0.05],
        [np.nan, 0.001, 0.002],  # a minority diverged
    ],
)
def test_runs_that_diverged_are_not_passed_over(seeds):
    table = summary({"rnn": [seeds, seeds], "gru": [[0.001], seeds]})
    assert_true(curve_finding(table, GUESS), table, GUESS)


def test_a_claim_that_is_false_would_be_found():
    table = summary({"rnn": [0.001, 0.17, 0.03, 0.02]})
    for sentence in (
        "The RNN solves every window",
        "The RNN solves windows up to 4 and beats guessing the mean beyond",
        "From window 8 on, the RNN is worse than guessing the mean",
        "The RNN beats guessing the mean but solves only some windows",
        "At 2 of 4 windows, the RNN is worse than guessing the mean",
        "At windows 8 and 16, the RNN is no better than guessing the mean",
    ):
        with pytest.raises(AssertionError):
            assert_true(sentence, table, GUESS)
    assert_true("At window 8, the RNN is worse than guessing the mean", table, GUESS)


# Inside a run


def weights(*rows):
    """An attention table of these rows of weights."""
    places = list(np.ndindex(len(rows), len(rows[0])))
    return pd.DataFrame([{"target": row + 1, "step": step + 1, "weight": rows[row][step]} for row, step in places])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([1, 0, 0, 0], "Attention puts all its weight on step 1 of 4"),
        ([0.9996, 0.0004, 0, 0], "Attention puts all its weight on step 1 of 4"),
        ([0.998, 0.002, 0, 0], "Attention puts 99.8% of its weight on step 1 of 4"),
        ([0.1, 0.1, 0.7, 0.1], "Attention puts 70% of its weight on step 3 of 4"),
        ([0.25] * 4, "Attention spreads its weight evenly: at most 25% on any of the 4 steps"),
        ([1 / 32] * 32, "Attention spreads its weight evenly: at most 3% on any of the 32 steps"),
    ],
)
def test_attention_is_said_to_look_where_it_looks(row, sentence):
    assert attention_finding(weights(row)) == sentence


@pytest.mark.parametrize(
    "row",
    [
        [0.74, 0.26],  # two steps, of which one takes three times as much as the other
        [0.36, 0.34, 0.15, 0.15],
        [1 / 22] * 22 + [0] * 10,  # even over some steps, nothing on the others
    ],
)
def test_weights_that_differ_much_are_not_called_even(row):
    assert "evenly" not in attention_finding(weights(row))


def test_for_many_targets_it_tells_the_weight_on_each_one_s_own_step():
    table = weights([0.9, 0.05, 0.05], [0.2, 0.8, 0], [0.3, 0, 0.7])
    assert attention_finding(table) == "Each of the 3 queries puts 80% of its weight on its own step, on average"


def test_untrained_attention_is_called_so():
    assert attention_finding(weights([0.25] * 4), trained=False).startswith("Untrained attention spreads")
    assert "untrained queries" in attention_finding(weights([1, 0], [0, 1]), trained=False)


def test_attention_that_diverged_is_said_to_have():
    assert "diverged" in attention_finding(weights([np.nan] * 4))


@pytest.mark.parametrize(
    ("prediction", "target", "sentence"),
    [
        (0.512, 0.834, "From its last state the GRU reads 0.51; the first value was 0.83"),
        (0.8312, 0.8341, "From its last state the GRU reads 0.83; the first value was 0.83, as it should"),
        (1.2, 0.1, "From its last state the GRU reads 1.20; the first value was 0.10"),
    ],
)
def test_the_last_state_is_said_to_give_what_it_gives(prediction, target, sentence):
    assert hidden_finding("GRU", np.array([prediction]), np.array([target])) == sentence


def test_for_many_targets_the_errors_told_are_roots_of_mean_squares():
    # √((0² + 0.4² + 0.3²) / 3) and √((0² + 0² + 0.1²) / 3)
    sentence = hidden_finding("RNN", np.array([0.5, 0.9, 0.1]), np.array([0.5, 0.5, 0.4]))
    assert sentence == (
        "From its last state the RNN recovers the 3 values to within 0.29; guessing 0.50 misses by 0.06"
    )


def test_an_untrained_state_is_called_so():
    assert "untrained" in hidden_finding("RNN", np.array([0.5]), np.array([0.4]), trained=False)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_hidden_state_that_diverged_is_said_to_have(wrong):
    assert "diverged" in hidden_finding("RNN", np.array([wrong]), np.array([0.5]))
    assert "diverged" in hidden_finding("RNN", np.array([0.5, wrong]), np.array([0.5, 0.5]))


def test_names_are_listed_as_running_text_wants_them():
    assert names(["RNN"]) == "the RNN"
    assert names(["RNN", "GRU"]) == "the RNN and the GRU"
    assert names(["RNN", "GRU", "Attention"]) == "the RNN, the GRU and attention"
    assert capitalised("the RNN") == "The RNN"
