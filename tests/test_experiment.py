"""A run gives the same numbers wherever and however often it is made, and the numbers say what the design says."""

import functools
import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import Generator

from explorer import experiment, training
from explorer.config import KEYS, POSITIONS, RunConfig
from explorer.experiment import Cancelled, RunResult, canonical, grid, restore, sweep
from explorer.models import MODELS, Recurrent, build
from explorer.tasks import TASKS

# The plain loop: whether the engine is ready depends on what ran before, and its numbers differ in the last digits.
run = functools.partial(experiment.run, reference=True)

SMALL = RunConfig(window=8, steps=12, sequences=8, test_sequences=64)
ANOTHER = {  # for each field a value that is not that of SMALL
    "task": "any",
    "window": 9,
    "hidden": 3,
    "width": 5,
    "positions": "sinusoidal",
    "keys": "position+content",
    "steps": 13,
    "learning_rate": 0.02,
    "clip": 0.001,
    "sequences": 9,
    "fresh": True,
    "init_seed": 2,
    "data_seed": 11,
    "test_sequences": 65,
    "test_seed": 21,
    "curriculum": ((4, 6), (8, 6)),
}
ALWAYS_READ = ("task", "model", "window", "test_sequences", "test_seed")
TRAINED = [name for name, kind in MODELS.items() if kind.reads]
VARIANTS = [
    *({"model": name, "start": start} for name, kind in MODELS.items() for start in kind.starts),
    *({"model": "attention", "positions": p, "keys": k} for p, k in itertools.product(POSITIONS, KEYS)),
    {"model": "attention", "task": "any"},
    {"model": "gru", "task": "any", "fresh": True},
    {"model": "lstm", "clip": 0.01, "curriculum": ((2, 2), (4, 3), (8, 3)), "steps": 8},
]
MAIN_FIELDS = ("test_loss", "r2", "parameters")


def changed(model: str, name: str) -> RunConfig:
    """SMALL for this model, with one field changed."""
    if name == "start":
        return replace(SMALL, model=model, start=MODELS[model].starts[-1])
    return replace(SMALL, model=model, **{name: ANOTHER[name]})


def same(one: RunResult, other: RunResult) -> bool:
    """Bit for bit the same numbers."""
    return (
        all(getattr(one, name) == getattr(other, name) for name in MAIN_FIELDS)
        and np.array_equal(one.train_loss, other.train_loss)
        and np.array_equal(one.moments, other.moments)
        and np.array_equal(one.weights, other.weights)
    )


def by_hand(config: RunConfig) -> dict:
    """What training and scoring this very config gives, without `run`."""
    task = TASKS[config.task]
    model = build(config, task.shape(config.window))
    trained = training.train(config, model, task)
    scored = training.score(config, model, task)
    return trained._asdict() | {"test_loss": scored.loss, "r2": scored.r2, "parameters": model.parameter_count}


def drawn_for_the_test(config: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return TASKS[config.task].sample(config.test_sequences, config.window, Generator().manual_seed(config.test_seed))


# Equal runs, equal configs


def test_every_setting_is_tried():
    assert set(ANOTHER) | {"model", "start"} == set(SMALL.to_dict())


@pytest.mark.parametrize("model", MODELS)
def test_the_canonical_config_keeps_what_the_model_reads_and_resets_the_rest(model):
    for name in ANOTHER:
        config = changed(model, name)
        read = name in ALWAYS_READ or name in MODELS[model].reads
        kept = getattr(canonical(config), name)
        assert kept == (getattr(config, name) if read else getattr(RunConfig(), name)), name


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_the_canonical_config_is_its_own_canonical_config(variant):
    once = canonical(replace(SMALL, **variant))
    assert canonical(once) == once


@pytest.mark.parametrize("model", MODELS)
def test_a_setting_that_the_model_does_not_read_changes_no_number(model):
    base = run(replace(SMALL, model=model))
    for name in set(ANOTHER) - set(ALWAYS_READ) - set(MODELS[model].reads):
        assert canonical(changed(model, name)) == base.config, name
        direct = by_hand(changed(model, name))
        assert all(direct[key] == getattr(base, key) for key in MAIN_FIELDS), name
        assert np.array_equal(direct["train_loss"], base.train_loss), name
        assert np.array_equal(direct["weights"], base.weights), name


@pytest.mark.parametrize("model", MODELS)
def test_a_setting_that_the_model_reads_changes_the_numbers(model):
    base = run(replace(SMALL, model=model))
    for name in (*MODELS[model].reads, *ALWAYS_READ):
        if name != "model" and not (name == "start" and len(MODELS[model].starts) == 1):
            assert not same(run(changed(model, name)), base), name


def test_attention_does_not_depend_on_hidden_units_nor_a_baseline_on_seeds():
    assert canonical(RunConfig(model="attention", hidden=3)) == canonical(RunConfig(model="attention", hidden=8))
    for baseline in ("mean", "constant"):
        other = RunConfig(model=baseline, init_seed=5, data_seed=6, steps=7, fresh=True, learning_rate=1.0)
        assert canonical(other) == canonical(RunConfig(model=baseline))
        assert canonical(replace(other, test_seed=21)) != canonical(other)


def test_a_curriculum_of_one_stage_is_the_same_run_as_none():
    assert canonical(RunConfig(curriculum=((32, 60),))) == canonical(RunConfig())


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_a_run_gives_what_training_and_scoring_its_config_gives(variant):
    config = replace(SMALL, **variant, data_seed=11)
    result, direct = next(sweep([config], run)), by_hand(config)
    assert result.config == config
    for name in MAIN_FIELDS:
        assert getattr(result, name) == direct[name], name
    assert np.array_equal(result.train_loss, direct["train_loss"])
    assert np.array_equal(result.moments, direct["moments"])


def test_weights_that_cannot_move_are_shown_as_still():
    result = run(replace(SMALL, model="attention", positions="none"))
    assert (result.weights == result.weights[0]).all()
    assert result.test_loss == pytest.approx(run(replace(SMALL, model="mean")).test_loss, rel=1e-5)


# Bit-equal everywhere


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_a_run_is_bit_equal_alone_and_in_four_threads_at_once(variant):
    # Threads that have computed nothing before, at the sizes of the lesson: there libraries begin to split their sums.
    config, ready = replace(RunConfig(steps=8, window=8 if "curriculum" in variant else 32), **variant), Barrier(4)
    alone = run(config)

    def together(_) -> RunResult:
        ready.wait(30)
        return run(config)

    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(together, range(4)):
            assert same(alone, other)


@pytest.mark.parametrize("model", TRAINED)
def test_a_run_is_bit_equal_while_three_others_train(model):
    config = RunConfig(model=model, steps=8)
    others = [replace(config, init_seed=seed, window=window) for seed, window in ((2, 8), (3, 32), (4, 16))]
    alone, ready = run(config), Barrier(4)

    def together(config: RunConfig) -> RunResult:
        ready.wait(30)
        return run(config)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(together, [*others, config]))
    assert same(alone, results[-1])
    assert not any(same(alone, other) for other in results[:-1])


@pytest.mark.parametrize("model", MODELS)
def test_a_restored_model_answers_the_same_in_a_thread_of_its_own(model):
    result = run(RunConfig(model=model, steps=12))

    def scored() -> training.Score:
        return training.score(result.config, restore(result), TASKS["first"])

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(scored).result() == (result.test_loss, result.r2)


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_a_run_neither_reads_nor_moves_the_global_generator(variant):
    config = replace(SMALL, **variant)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        state = torch.random.get_rng_state()
        first = run(config)
        assert torch.equal(torch.random.get_rng_state(), state)
        torch.manual_seed(2)
        assert same(first, run(config, listen=lambda step, loss: torch.rand(1)))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_a_restored_model_scores_what_the_run_scored(model, task):
    result = run(replace(SMALL, model=model, task=task))
    restored = restore(result)
    scored = training.score(result.config, restored, TASKS[task])
    assert (scored.loss, scored.r2) == (result.test_loss, result.r2)
    assert not any(parameter.requires_grad for parameter in restored.parameters())


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_a_model_can_be_restored_as_it_was_at_every_moment(variant):
    result = run(replace(SMALL, **variant))
    for moment in (0, len(result.moments) // 2, -1):
        flat = [parameter.flatten() for parameter in restore(result, moment).parameters()]
        assert np.array_equal(torch.cat(flat).numpy() if flat else np.empty(0), result.weights[moment])
    start = build(result.config, TASKS[result.config.task].shape(result.config.window))
    for name, weights in restore(result, 0).state_dict().items():
        assert torch.equal(weights, start.state_dict()[name]), name


def test_changing_a_restored_model_does_not_change_the_result():
    result = run(replace(SMALL, model="rnn"))
    before = result.weights.copy()
    for parameter in restore(result).parameters():
        parameter.zero_()
    assert np.array_equal(result.weights, before)


# Many runs


def described(configs: list[RunConfig]) -> list[tuple]:
    return [(c.data_seed, c.init_seed, c.window, c.model) for c in configs]


def test_a_grid_tells_the_whole_story_for_one_seed_before_the_next():
    configs = grid(SMALL, ["rnn", "attention"], [8, 4], [3, 1], [10, 12])
    assert described(configs) == [
        (data, init, window, model) for data in (10, 12) for init in (3, 1) for window in (8, 4)
        for model in ("rnn", "attention")
    ]  # fmt: skip
    assert all(config.hidden == SMALL.hidden and config.steps == SMALL.steps for config in configs)


def test_a_grid_runs_a_baseline_once_a_window():
    configs = grid(SMALL, list(MODELS), [4, 8], [1, 2, 3], [10, 11])
    assert len({canonical(config) for config in configs}) == len(configs)
    for name, kind in MODELS.items():
        count = sum(config.model == name for config in configs)
        assert count == 2 * (3 if "init_seed" in kind.reads else 1) * (2 if "data_seed" in kind.reads else 1)
    assert described(configs)[: 2 * len(MODELS)] == [(10, 1, w, m) for w in (4, 8) for m in MODELS]


def test_a_grid_leaves_out_what_is_asked_for_twice():
    assert described(grid(SMALL, ["rnn", "rnn"], [4, 4], [1, 1], [10, 10])) == [(10, 1, 4, "rnn")]
    assert grid(SMALL, [], [4], [1], [10]) == []


@pytest.mark.parametrize(
    ("models", "windows", "sentence"),
    [
        (["rnn", "transformer"], [4], "model is 'transformer'; it must be one of rnn"),
        (["rnn"], [4, 5000], "window is 5000; it must be a whole number from 2 to 1024"),
        (["mean"], [0], "window is 0"),
    ],
)
def test_a_grid_with_a_bad_value_is_refused_before_anything_runs(models, windows, sentence):
    with pytest.raises(ValueError, match=sentence):
        grid(SMALL, models, windows, [1], [10])


def test_a_sweep_gives_a_result_for_each_config_in_order_and_runs_each_once():
    configs = [
        replace(SMALL, model="attention", hidden=8),
        replace(SMALL, model="mean", init_seed=1),
        replace(SMALL, model="attention", hidden=3),
        replace(SMALL, model="mean", init_seed=2),
        replace(SMALL, model="attention", hidden=8),
    ]
    made = []
    results = list(sweep(configs, lambda config: made.append(config) or run(config)))
    assert [result.config for result in results] == configs
    assert made == [canonical(configs[0]), canonical(configs[1])]
    assert same(results[0], results[2]) and same(results[1], results[3]) and same(results[0], results[4])


def test_a_sweep_hands_over_each_result_as_soon_as_it_is_there():
    made = []
    results = sweep(grid(SMALL, ["rnn"], [4, 8], [1], [10]), lambda config: made.append(config.window) or run(config))
    assert next(results).config.window == 4
    assert made == [4]


def test_a_sweep_gives_what_single_runs_give():
    configs = grid(SMALL, list(MODELS), [4], [1, 2], [10])
    assert all(same(result, run(config)) for result, config in zip(sweep(configs, run), configs, strict=True))


# What a result says


@pytest.mark.parametrize("model", MODELS)
def test_a_result_is_written_as_every_setting_and_five_numbers(model):
    config = replace(SMALL, model=model)
    result = run(config)
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert list(written) == [*config.to_dict(), "train_loss", "test_loss", "r2", "parameters", "seconds"]
    assert {name: written[name] for name in config.to_dict()} == result.config.to_dict()
    assert written["train_loss"] == (float(result.train_loss[-1]) if len(result.train_loss) else None)
    assert (written["test_loss"], written["r2"]) == (result.test_loss, result.r2)
    assert written["parameters"] == result.weights.shape[1]
    assert 0 < written["seconds"] < 60


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_written_as_null(value):
    result = replace(run(SMALL), test_loss=value, r2=value, train_loss=np.array([0.1, value], np.float32))
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert written["test_loss"] is written["r2"] is written["train_loss"] is None
    assert written["parameters"] == 97


def test_a_run_without_a_step_has_a_test_loss_and_no_training_loss():
    result = run(replace(SMALL, steps=0))
    assert result.to_dict()["train_loss"] is None
    assert result.to_dict()["test_loss"] > 0
    assert list(result.moments) == [0] and len(result.weights) == 1


@pytest.mark.parametrize("window", [2, 1024])
@pytest.mark.parametrize("model", MODELS)
def test_the_shortest_and_the_longest_window_run(model, window):
    result = run(RunConfig(model=model, window=window, steps=1, sequences=1, test_sequences=2))
    assert math.isfinite(result.test_loss) and 0 <= result.r2 <= 1 + 1e-9


def test_a_run_that_explodes_still_gives_a_result_that_can_be_written():
    result = run(
        RunConfig(model="rnn", start="identity", window=64, steps=6, learning_rate=1.0, sequences=4, init_seed=3)
    )
    assert not math.isfinite(result.test_loss)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["test_loss"] is None


def test_a_result_names_the_versions_it_was_made_with():
    assert run(SMALL).versions == {"explorer": "0.1.0", "torch": torch.__version__}


def test_a_listener_hears_the_losses_that_the_result_keeps():
    heard = []
    result = run(SMALL, listen=lambda step, loss: heard.append((step, loss)))
    assert [step for step, _ in heard] == list(range(1, 13))
    np.testing.assert_allclose([loss for _, loss in heard], result.train_loss, rtol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_is_told_to_stop_gives_no_result(model):
    with pytest.raises(Cancelled):
        run(replace(SMALL, model=model), cancelled=lambda: True)


@pytest.mark.parametrize("act", [canonical, run], ids=["canonical", "run"])
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "transformer"}, "model is 'transformer'; it must be one of rnn, gru, lstm, attention"),
        ({"task": "last"}, "task is 'last'; it must be one of first, any"),
        ({"model": "rnn", "start": "chrono"}, "start is 'chrono'; RNN takes default, orthogonal, identity"),
        ({"model": "gru", "start": "identity"}, "start is 'identity'; GRU takes default, orthogonal, chrono"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_those_that_do(act, values, sentence):
    with pytest.raises(ValueError, match=sentence):
        act(RunConfig(**values))


@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if issubclass(kind, Recurrent)])
def test_a_run_that_would_not_fit_in_memory_is_refused_at_once(name):
    with pytest.raises(
        ValueError, match=r"sequences is 4096; at window 1024 .* 12 GB of memory, and 4 GB is the limit"
    ):
        run(RunConfig(model=name, window=1024, hidden=64, sequences=4096))


def test_a_run_that_fits_in_memory_is_not_refused():
    # Weights from positions alone are kept once, not for every sequence: this trains in well under half a gigabyte.
    config = RunConfig(model="attention", task="any", window=1024, sequences=4096)
    assert canonical(config).sequences == 4096
    with pytest.raises(ValueError, match="memory"):
        canonical(replace(config, keys="position+content"))


# What the numbers say


def test_attention_solves_every_window_of_the_lessons_budget():
    results = list(sweep(grid(RunConfig(), ["attention"], [4, 8, 16, 32, 64], range(1, 21), [10])))
    for window in (4, 8, 16, 32, 64):
        losses = [result.test_loss for result in results if result.config.window == window]
        assert len(losses) == 20
        assert np.mean(np.array(losses) < 0.01) >= 0.95, f"window {window}: {sorted(losses)[-3:]}"


def test_the_rnn_mostly_fails_at_window_32_and_is_worse_than_knowing_nothing():
    losses = [result.test_loss for result in sweep(grid(RunConfig(), ["rnn"], [32], range(1, 9), [10]))]
    assert np.mean(np.array(losses) < 0.01) <= 0.25
    assert np.median(losses) > 1 / 12  # it memorised noise


@pytest.mark.parametrize("window", [4, 32, 128])
def test_the_averaging_loss_lies_within_three_standard_errors_of_its_closed_form(window):
    config = RunConfig(model="mean", window=window)
    inputs, targets = drawn_for_the_test(config)
    errors = ((inputs.mean(1) - targets) ** 2).double()
    error = errors.std().item() / math.sqrt(4096)
    assert run(config).test_loss == pytest.approx((1 - 1 / window) / 12, abs=3 * error)


@pytest.mark.parametrize("steps", [0, 20, 60])
@pytest.mark.parametrize("window", [4, 32])
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_loss_of_attention_follows_from_its_weights(positions, window, steps):
    # E(Σ w_i x_i − x_1)² = ((1 − w_1)² + Σ_(i>1) w_i²) / 12, as the weights sum to 1.
    result = run(RunConfig(model="attention", positions=positions, window=window, steps=steps))
    model = restore(result)
    inputs, targets = drawn_for_the_test(result.config)
    weights = model.weights(inputs[:1])[0, 0].double()
    errors = ((model(inputs) - targets) ** 2).double()
    expected = ((1 - weights[0]) ** 2 + (weights[1:] ** 2).sum()).item() / 12
    assert result.test_loss == pytest.approx(expected, abs=3 * errors.std().item() / math.sqrt(4096))


@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if issubclass(kind, Recurrent)])
def test_a_fixed_vector_never_beats_its_limit_and_the_rnn_comes_close(name):
    steps = 400 if name == "rnn" else 100
    config = RunConfig(model=name, task="any", window=4, hidden=2, steps=steps, sequences=64, fresh=True)
    result = run(config)
    inputs, targets = drawn_for_the_test(result.config)
    errors = ((restore(result)(inputs) - targets) ** 2).double().mean(1)
    bound = (1 - 2 / 4) / 12
    assert result.test_loss > bound - 3 * errors.std().item() / math.sqrt(4096)
    assert result.test_loss < 1.25 * bound or name != "rnn"  # gates take longer to learn
