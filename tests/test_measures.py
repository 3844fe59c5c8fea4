"""The tables say what torch's own cells, numpy and the closed forms say."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from explorer import experiment
from explorer.config import KEYS, POSITIONS, RunConfig
from explorer.experiment import grid, restore
from explorer.measures import (
    SOLVED,
    answer,
    attention_table,
    guessing_the_mean,
    hidden_table,
    levels_table,
    moment_at,
    runs_table,
    sequence,
    summary_table,
    untrained,
)
from explorer.models import MODELS
from explorer.tasks import TASKS

run = partial(experiment.run, reference=True)  # the plain loop, bit for bit the same every time
SMALL = RunConfig(window=7, hidden=5, steps=25, sequences=8, test_sequences=64)
RECURRENT = [name for name, kind in MODELS.items() if kind.inside == "hidden"]
ATTENTIVE = [name for name, kind in MODELS.items() if kind.inside == "attention"]
STARTS = [(name, start) for name in RECURRENT for start in MODELS[name].starts]


def torch_cell(result, moment=-1):
    """torch's own cell with the run's weights, read from their flat list: w_ih, w_hh, b_ih, b_hh, then the read-out."""
    config, flat = result.config, torch.from_numpy(result.weights[moment].copy())
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[config.model]
    rectified = {"nonlinearity": "relu"} if config.start == "identity" else {}
    cell = kind(1, config.hidden, batch_first=True, **rectified)
    place = 0
    with torch.no_grad():
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            parameter = getattr(cell, name)
            parameter.copy_(flat[place : place + parameter.numel()].view_as(parameter))
            place += parameter.numel()
    return cell, flat[place:]


def made_up(losses, **columns):
    """A runs table from {(model, window): losses}."""
    rows = [
        {"model": model, "window": window, "init_seed": seed, "test_loss": loss}
        for (model, window), values in losses.items()
        for seed, loss in enumerate(values, 1)
    ]
    table = pd.DataFrame(rows).assign(data_seed=10, r2=0.0, parameters=97, seconds=0.5, **columns)
    return table.assign(label=table["model"].map(lambda name: MODELS[name].label), solved=table["test_loss"] < SOLVED)


# Looking inside


@pytest.mark.parametrize("moment", [0, -1])
@pytest.mark.parametrize(("model", "start"), STARTS)
def test_hidden_states_are_those_of_torch_with_the_same_weights(model, start, moment):
    result = run(replace(SMALL, model=model, start=start))
    inputs, _ = sequence(result.config, seed=3)
    with torch.no_grad():
        states = torch_cell(result, moment)[0](inputs)[0][0].numpy()  # (n, H)
    table = hidden_table(result, inputs, moment)
    for row in table.itertuples():
        assert abs(row.value - states[row.step - 1, row.unit - 1]) < 1e-6
    assert states.std() > 1e-4  # there is something to compare


@pytest.mark.parametrize("model", RECURRENT)
def test_the_answer_is_the_read_out_of_the_last_hidden_state(model):
    result = run(replace(SMALL, model=model, task="any"))
    inputs, _ = sequence(result.config, seed=3)
    last = hidden_table(result, inputs).query("step == 7").sort_values("unit")["value"].to_numpy()
    readout = torch_cell(result)[1].numpy()  # (7·5 weights, 7 biases)
    expected = readout[:35].reshape(7, 5) @ last + readout[35:]
    assert answer(result, inputs) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("model", RECURRENT)
def test_steps_and_units_count_from_one_and_each_pair_comes_once(model):
    result = run(replace(SMALL, model=model, steps=0))
    table = hidden_table(result, sequence(result.config, 1)[0])
    assert list(zip(table["step"], table["unit"], strict=True)) == list(itertools.product(range(1, 8), range(1, 6)))


@pytest.mark.parametrize(("positions", "keys", "task"), list(itertools.product(POSITIONS, KEYS, TASKS)))
@pytest.mark.parametrize("model", ATTENTIVE)
def test_attention_weights_are_shares_that_give_the_answer(model, positions, keys, task):
    result = run(replace(SMALL, model=model, positions=positions, keys=keys, task=task))
    inputs, targets = sequence(result.config, seed=3)
    table = attention_table(result, inputs)
    weights = table.pivot(index="target", columns="step", values="weight")
    assert list(weights.index) == list(range(1, targets.shape[1] + 1))  # targets and steps count from 1
    assert list(weights.columns) == list(range(1, 8))
    assert len(table) == weights.size
    assert (weights > 0).all(axis=None)
    assert weights.sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-6)
    assert weights.to_numpy() @ inputs[0, :, 0].numpy() == pytest.approx(answer(result, inputs), abs=1e-6)


@pytest.mark.parametrize("model", ATTENTIVE)
def test_trained_attention_looks_at_the_step_that_is_asked_for(model):
    result = run(RunConfig(model=model, window=8, test_sequences=64))
    table = attention_table(result, sequence(result.config, 1)[0])
    assert table.loc[table["weight"].idxmax(), ["target", "step"]].tolist() == [1, 1]
    result = run(RunConfig(model=model, window=8, task="any", steps=300, fresh=True, test_sequences=64))
    table = attention_table(result, sequence(result.config, 1)[0])
    best = table.loc[table.groupby("target")["weight"].idxmax()]
    assert best["step"].tolist() == best["target"].tolist() == list(range(1, 9))


@pytest.mark.parametrize("table", [hidden_table, attention_table])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_without_it_is_refused_with_the_names_of_those_that_have_it(model, table):
    having = RECURRENT if table is hidden_table else ATTENTIVE
    result = run(replace(SMALL, model=model, steps=0))
    inputs = sequence(result.config, 1)[0]
    if model in having:
        assert len(table(result, inputs))
        return
    with pytest.raises(ValueError, match=f"model is '{model}'") as caught:
        table(result, inputs)
    message = str(caught.value).split("'", 2)[2]
    assert [name for name in MODELS if name in message.replace(";", "").replace(",", "").split()] == having


def test_tables_are_of_the_moment_asked_for():
    result = run(SMALL)
    inputs = sequence(SMALL, 1)[0]
    first, last = hidden_table(result, inputs, 0), hidden_table(result, inputs, len(result.moments) - 1)
    pd.testing.assert_frame_equal(first, hidden_table(run(replace(SMALL, steps=0)), inputs))
    pd.testing.assert_frame_equal(last, hidden_table(result, inputs))
    assert not np.allclose(first["value"], last["value"])


@pytest.mark.parametrize("model", [name for name, kind in MODELS.items() if kind.inside])
def test_an_untrained_run_has_the_starting_weights(model):
    config = replace(SMALL, model=model, steps=20, curriculum=((4, 10), (7, 10)))
    before = untrained(config)
    assert np.array_equal(before.weights[-1], run(config).weights[0])
    assert before.moments.tolist() == [0]


def test_moments_are_found_by_their_training_step():
    result = run(SMALL)
    steps = result.moments.tolist()
    assert [moment_at(result, step) for step in steps] == list(range(len(steps)))
    assert moment_at(result, None) == len(steps) - 1
    missing = next(step for step in range(SMALL.steps) if step not in steps)
    with pytest.raises(ValueError) as caught:
        moment_at(result, missing)
    message = str(caught.value)
    assert f"moment is {missing}" in message
    assert message.endswith(", ".join(map(str, steps)))


@pytest.mark.parametrize("task", TASKS)
def test_a_sequence_is_drawn_by_its_seed_with_its_target(task):
    config = replace(SMALL, task=task)
    inputs, targets = sequence(config, 4)
    assert inputs.shape == (1, 7, 1)
    assert torch.equal(targets, inputs[:, :1, 0] if task == "first" else inputs[:, :, 0])
    assert torch.equal(inputs, sequence(config, 4)[0])
    assert not torch.equal(inputs, sequence(config, 5)[0])


# Losses


@pytest.fixture(scope="module")
def results():
    base = replace(SMALL, steps=5)
    return [run(config) for config in grid(base, list(MODELS), [16, 4], [1, 2, 3], [10])]


def test_runs_table_has_a_row_a_run(results):
    table = runs_table(results)
    for result, row in zip(results, table.itertuples(), strict=True):
        config = result.config
        assert (row.model, row.window, row.init_seed, row.data_seed) == (
            config.model, config.window, config.init_seed, config.data_seed,
        )  # fmt: skip
        assert (row.test_loss, row.r2, row.parameters, row.seconds) == (
            result.test_loss, result.r2, result.parameters, result.seconds,
        )  # fmt: skip
        assert row.label == MODELS[config.model].label
        assert row.solved == (result.test_loss < 0.01)
        assert row.parameters == sum(p.numel() for p in restore(result).parameters())


def test_a_run_is_solved_below_a_hundredth(results):
    losses = [0.0, 0.00999, 0.01, 0.011, np.nan, np.inf]
    table = runs_table([replace(results[0], test_loss=loss) for loss in losses])
    assert table["solved"].tolist() == [True, True, False, False, False, False]


def test_summary_has_a_row_for_each_model_and_window_in_the_order_of_the_menu(results):
    summary = summary_table(runs_table(results))
    assert list(zip(summary["model"], summary["window"], strict=True)) == list(itertools.product(MODELS, [4, 16]))
    # A baseline under another weight seed is the same run.
    assert dict(zip(summary["model"], summary["runs"], strict=True)) == {
        name: 3 if kind.reads else 1 for name, kind in MODELS.items()
    }


def test_summary_is_numpy_s_median_lowest_highest_and_share(results):
    random = np.random.default_rng(7)
    losses = {("rnn", 8): 10 ** random.uniform(-3, -1, 10), ("gru", 8): 10 ** random.uniform(-3, -1, 7)}
    losses[("rnn", 4)] = np.array([0.0099999, 0.01, 0.5])  # exactly on the mark is not below it
    for row in summary_table(made_up(losses)).itertuples():
        values = losses[row.model, row.window]
        assert row.median == np.median(values)
        assert (row.lowest, row.highest) == (values.min(), values.max())
        assert row.solved == np.mean(values < 0.01)
        assert 0 < row.solved < 1
        assert (row.runs, row.diverged) == (len(values), 0)
        assert row.seconds == 0.5 * len(values)


def test_runs_that_diverged_are_counted_never_solved_and_left_out_of_the_rest():
    table = summary_table(made_up({("rnn", 4): [0.002, np.nan, 0.004, np.inf], ("lstm", 4): [np.nan, np.nan]}))
    rnn, lstm = table.itertuples()
    assert (rnn.runs, rnn.diverged, rnn.solved) == (4, 2, 0.5)
    assert (rnn.median, rnn.lowest, rnn.highest) == (0.003, 0.002, 0.004)
    assert (lstm.runs, lstm.diverged, lstm.solved) == (2, 2, 0)
    assert np.isnan(lstm.median)


def test_a_run_that_really_diverged_is_counted_as_such():
    # Rectified units that amplify, at the highest rate: the weights are no numbers after two steps.
    wild = RunConfig(start="identity", window=64, hidden=16, learning_rate=1.0, steps=2, test_sequences=16)
    row = summary_table(runs_table([run(wild), run(replace(wild, steps=0))])).iloc[0]
    assert (row["runs"], row["diverged"]) == (2, 1)
    assert np.isfinite(row["median"])


def test_tables_of_nothing_are_empty():
    runs = runs_table([])
    assert runs.empty and summary_table(runs).empty
    assert set(runs.columns) == set(made_up({("rnn", 4): [0.1]}).columns)


@pytest.mark.parametrize("task", TASKS)
def test_closed_forms_have_a_row_for_each_window(task):
    table = levels_table(replace(SMALL, task=task, hidden=8), [4, 8, 32])
    values = table.pivot(index="key", columns="window", values="value")
    assert list(values.columns) == [4, 8, 32]
    assert values.loc["constant"].to_numpy() == pytest.approx(1 / 12)
    assert values.loc["mean"].to_numpy() == pytest.approx([1 / 16, 7 / 96, 31 / 384])
    if task == "any":
        assert values.loc["bound"].to_numpy() == pytest.approx([0, 0, 1 / 16])
    assert table["label"].all() and table["formula"].all()


def test_guessing_the_mean_is_measured_where_it_was_and_else_the_closed_form():
    levels = levels_table(SMALL, [4, 8, 16])
    summary = summary_table(made_up({("mean", 8): [0.07], ("rnn", 4): [0.5], ("constant", 16): [0.09]}))
    assert guessing_the_mean(summary, levels) == pytest.approx({4: 1 / 16, 8: 0.07, 16: 15 / 192})
    nothing = summary_table(runs_table([]))
    assert guessing_the_mean(nothing, levels) == pytest.approx({4: 1 / 16, 8: 7 / 96, 16: 15 / 192})


@pytest.mark.parametrize("window", [4, 32])
def test_the_measured_mean_lies_within_three_standard_errors_of_its_closed_form(window):
    config = RunConfig(model="mean", window=window)
    drawn = np.random.default_rng(1).random((100_000, window))
    error = ((drawn.mean(1) - drawn[:, 0]) ** 2).std() / np.sqrt(config.test_sequences)
    measured = guessing_the_mean(summary_table(runs_table([run(config)])), levels_table(config, [window]))[window]
    closed = (1 - 1 / window) / 12
    assert 0 < abs(measured - closed) < 3 * error
