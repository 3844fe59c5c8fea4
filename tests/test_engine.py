"""The engine against the plain loop: the same gradients, losses and draws, at any window, alone or beside others."""

import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from explorer import engine, experiment, training
from explorer.config import RunConfig, Shape
from explorer.engine import stacked
from explorer.experiment import canonical
from explorer.models import build
from explorer.tasks import TASKS, Task, task_named

RECURRENT = [("rnn", "default"), ("rnn", "orthogonal"), ("rnn", "identity")] + [
    (model, start) for model in ("gru", "lstm") for start in ("default", "orthogonal", "chrono")
]
ATTENTION = [("learned", "position"), ("sinusoidal", "position")] + [
    (positions, "position+content") for positions in ("learned", "sinusoidal", "none")
]
CONFIGS = [RunConfig(model=model, start=start) for model, start in RECURRENT] + [
    RunConfig(model="attention", positions=positions, keys=keys) for positions, keys in ATTENTION
]


def name(config: RunConfig) -> str:
    return "-".join([config.model, *(config.positions, config.keys) * (config.model == "attention"), config.start])


@pytest.fixture(scope="module", autouse=True)
def kernels():
    engine.prepare(wait=True)
    assert engine.status() == "ready"
    from explorer.engine import single

    return single


class Marked(Task):
    """Two numbers a step: a value, and a mark on the two steps whose values are to be added."""

    def shape(self, window):
        return Shape(features=2, targets=1, expected=1.0)

    def sample(self, count, window, generator):
        values = torch.rand(count, window, generator=generator)
        marks = torch.zeros(count, window).scatter_(1, torch.rand(count, window, generator=generator).topk(2)[1], 1.0)
        return torch.stack([values, marks], 2), (values * marks).sum(1, keepdim=True)

    def levels(self, window, hidden):
        return {}


@pytest.fixture
def marked(monkeypatch):
    monkeypatch.setitem(TASKS, "marked", Marked())


def one_step(single, config: RunConfig) -> tuple[np.ndarray, np.ndarray]:
    """The engine's gradient of the first step, and torch's in double precision, both flat."""
    task = task_named(config.task)
    run = single.Run(config, np.zeros(1, np.uint8))
    run.train(next(single.training_chunks(config, task)), 0, 1)
    model = build(config, task.shape(config.window)).double()
    inputs, targets = task.sample(config.sequences, config.stages()[0][0], Generator().manual_seed(config.data_seed))
    loss = mse_loss(model(inputs.double())[:, : targets.shape[1]], targets.double())
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    assert run.losses[0] == pytest.approx(loss.item(), rel=1e-6)
    return run.state[1], torch.cat([gradient.flatten() for gradient in gradients]).numpy()


@pytest.mark.parametrize("task", ["first", "any", "marked"])
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_the_gradient_of_a_step_is_torchs(kernels, marked, config, task):
    for changes in ({"window": 9}, {"window": 40, "sequences": 45, "hidden": 7, "width": 5}):
        ours, exact = one_step(kernels, experiment.canonical(replace(config, task=task, **changes)))
        assert np.linalg.norm(ours - exact) < 1e-5 * np.linalg.norm(exact)


def test_the_gradient_is_the_slope_of_the_loss(kernels):
    """Central differences in double precision, parameter by parameter: independent of any backward."""
    config = experiment.canonical(RunConfig(model="lstm", window=6, hidden=3, task="any"))
    ours, _ = one_step(kernels, config)
    model = build(config, Shape(1, 6, 0.5)).double()
    inputs, targets = task_named("any").sample(config.sequences, 6, Generator().manual_seed(config.data_seed))
    start = parameters_to_vector(model.parameters()).detach()

    def loss(at: torch.Tensor) -> float:
        vector_to_parameters(at, model.parameters())
        return mse_loss(model(inputs.double()), targets.double()).item()

    moves = 1e-5 * torch.eye(len(start), dtype=torch.float64)
    slopes = np.array([(loss(start + move) - loss(start - move)) / 2e-5 for move in moves])
    assert np.linalg.norm(ours - slopes) < 1e-5 * np.linalg.norm(slopes)


VARIANTS = [
    {"window": 5, "test_sequences": 64},
    {"window": 32, "test_sequences": 64},
    {"window": 100, "sequences": 7, "steps": 20},
    {"window": 16, "sequences": 40, "fresh": True},
    {"window": 16, "clip": 0.05},
    {"window": 8, "task": "any", "clip": 1.0},
    {"window": 12, "curriculum": ((4, 20), (8, 0), (12, 40))},
    {"window": 8, "task": "any", "curriculum": ((4, 30), (8, 30)), "fresh": True, "init_seed": 3},
    {"window": 9, "hidden": 13, "width": 6, "steps": 0},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_training_and_score_are_the_plain_loops(config, changes):
    config = experiment.canonical(replace(config, **({"test_sequences": 300} | changes)))
    plain = experiment.run(config, reference=True)
    trained, score = engine.run(config)
    assert score.loss == pytest.approx(plain.test_loss, abs=1e-4)
    assert np.abs(trained.train_loss - plain.train_loss).max(initial=0) < 1e-4
    assert (trained.moments == plain.moments).all() and trained.weights.shape == plain.weights.shape
    # Where a gradient is all but zero, Adam makes a step of its rounding error: only the first weights are compared.
    np.testing.assert_array_equal(trained.weights[0], plain.weights[0])
    model = experiment.restore(replace(plain, weights=trained.weights))
    again = training.score(config, model, task_named(config.task))
    assert score.loss == pytest.approx(again.loss, rel=1e-5, abs=1e-8) and score.r2 == pytest.approx(again.r2, abs=1e-5)


def test_two_features_a_step_train_as_in_the_plain_loop(marked):
    for config in CONFIGS:
        config = experiment.canonical(replace(config, task="marked", window=10, fresh=True, test_sequences=300))
        assert engine.run(config)[1].loss == pytest.approx(experiment.run(config, reference=True).test_loss, abs=1e-4)


@pytest.mark.parametrize(("window", "loss"), [(5, "0.0208"), (32, "0.1692")])
def test_the_lessons_numbers(window, loss):
    _, score = engine.run(experiment.canonical(RunConfig(window=window, test_sequences=64)))
    assert f"{score.loss:.4f}" == loss


def test_fresh_sequences_are_drawn_in_parts_of_bounded_size(kernels, monkeypatch):
    """The same numbers whether the draws fit in one chunk or not."""
    config = experiment.canonical(RunConfig(model="gru", window=8, fresh=True, test_sequences=500))
    whole = engine.run(config)
    monkeypatch.setattr("explorer.engine.blocks.CHUNK_BYTES", 7 * 4 * 9 * 32)
    monkeypatch.setattr("explorer.engine.blocks.SHARED_BYTES", 0)
    parts = list(kernels.training_chunks(config, task_named("first")))
    assert [chunk.steps for chunk in parts] == [7] * 8 + [4]
    assert len(list(kernels.test_chunks(config, task_named("first")))) > 1
    in_parts = engine.run(config)
    np.testing.assert_array_equal(in_parts[0].weights, whole[0].weights)
    assert in_parts[1] == pytest.approx(whole[1], rel=1e-12)


def test_a_run_that_diverges_says_so():
    config = experiment.canonical(RunConfig(start="identity", learning_rate=1.0, window=128, hidden=64, steps=20))
    plain, (trained, score) = experiment.run(config, reference=True), engine.run(config)
    assert not np.isfinite(plain.test_loss) and not np.isfinite(score.loss)
    assert not np.isfinite(trained.train_loss[-1])


@pytest.mark.parametrize("model", ["rnn", "gru", "lstm", "attention"])
def test_a_run_is_the_same_beside_others(model):
    config = experiment.canonical(RunConfig(model=model, window=20, fresh=True, test_sequences=500))
    alone, together = engine.run(config), []
    threads = [threading.Thread(target=lambda: together.append(engine.run(config))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) == 4
    for trained, score in together:
        assert score == alone[1] and all((a == b).all() for a, b in zip(trained, alone[0], strict=True))


def test_a_group_hands_over_each_result_as_it_comes():
    configs = [experiment.canonical(RunConfig(window=window, init_seed=seed)) for seed in (1, 2) for window in (4, 16)]
    results = {}
    engine.run_group(configs, lambda config, *outcome: results.update({config: outcome}))
    assert set(results) == set(configs)
    for config, (trained, score, seconds) in results.items():
        assert score == engine.run(config)[1] and len(trained.train_loss) == config.steps and seconds > 0


def test_a_group_passes_on_what_its_listener_raises():
    def broken(*_):
        raise KeyError("listener")

    with pytest.raises(KeyError, match="listener"):
        engine.run_group([RunConfig(window=4), RunConfig(window=5)], broken)


def test_a_listener_hears_of_the_steps():
    heard = []
    config = experiment.canonical(RunConfig(window=4, steps=500))
    trained, _ = engine.run(config, listen=lambda step, loss: heard.append((step, loss)))
    assert heard[-1][0] == 500 and 40 <= len(heard) <= 60
    assert all(loss == trained.train_loss[step - 1] for step, loss in heard)
    np.testing.assert_array_equal(trained.weights, engine.run(config)[0].weights)


LONG = [
    RunConfig(window=1024, hidden=64, sequences=512, steps=5000),
    RunConfig(model="lstm", window=1024, hidden=64, sequences=256, fresh=True, steps=5000),
    RunConfig(model="attention", task="any", window=1024, width=128, steps=5000),
    RunConfig(model="attention", keys="position+content", task="any", window=1024, sequences=128, steps=5000),
    RunConfig(model="gru", window=1024, hidden=64, steps=0, test_sequences=30000),
]


@pytest.mark.parametrize("config", LONG, ids=name)
@pytest.mark.parametrize("call", ["run", "run_group"])
def test_a_cancelled_run_stops_within_a_tenth_of_a_second(config, call):
    """The best of three: the machine may be busy with something else."""
    config = experiment.canonical(replace(config, test_sequences=max(config.test_sequences, 2)))
    late = []
    for _ in range(3):
        end = time.perf_counter() + 0.5
        with pytest.raises(experiment.Cancelled):
            if call == "run":
                engine.run(config, lambda end=end: time.perf_counter() > end)
            else:
                engine.run_group([config] * 3, print, lambda end=end: time.perf_counter() > end)
        late.append(time.perf_counter() - end)
        if late[-1] < 0.1:
            break
    assert min(late) < 0.1


def test_a_run_that_is_cancelled_before_it_starts_does_not_start():
    with pytest.raises(experiment.Cancelled):
        engine.run(RunConfig(), lambda: True)


def test_baselines_are_left_to_the_plain_loop():
    assert not engine.supports(RunConfig(model="mean")) and not engine.supports(RunConfig(model="constant"))
    assert all(engine.supports(config) for config in CONFIGS)


@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
def test_without_numba_the_engine_says_so(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from explorer import engine; from explorer.config import RunConfig\n"
        "engine.prepare(wait=True); engine.prepare()\n"
        "gru = RunConfig(model='gru'); print(engine.ready(gru), engine.supports(gru), engine.status())\n"
        "assert engine.ready(RunConfig()), 'a stack of seeds needs no numba'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False False unavailable: ") and missing in done.stdout


def test_importing_the_engine_does_not_import_numba():
    code = "import sys; from explorer import engine; print('numba' in sys.modules, engine.status())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False not started"


# Before the kernels are there


@pytest.mark.parametrize("seed", [0, 1, 10, 11, 2**31 - 1])
@pytest.mark.parametrize(
    "variant",
    [
        {"model": "rnn", "window": 5},
        {"model": "rnn", "window": 32, "hidden": 3, "fresh": True, "sequences": 7},
        {"model": "rnn", "task": "any", "window": 6, "learning_rate": 0.03},
        {"model": "attention", "window": 16},
        {"model": "attention", "task": "any", "window": 6, "width": 5, "fresh": True},
    ],
    ids=repr,
)
def test_a_stack_of_seeds_trains_each_as_the_plain_loop_does(variant, seed):
    config = canonical(RunConfig(**variant, init_seed=seed, steps=12, test_sequences=600))
    assert stacked.supports(config)
    (trained, score), plain = stacked.run(config), experiment.run(config, reference=True)
    assert score.loss == pytest.approx(plain.test_loss, abs=1e-6)
    assert score.r2 == pytest.approx(plain.r2, abs=1e-5)
    assert np.array_equal(trained.moments, plain.moments)
    np.testing.assert_allclose(trained.train_loss, plain.train_loss, atol=1e-6)
    np.testing.assert_allclose(trained.weights, plain.weights, atol=1e-5)


def test_a_stack_can_be_cancelled_and_asked_for_again():
    config = canonical(RunConfig(window=64, init_seed=21, steps=500))
    asked = []
    with pytest.raises(experiment.Cancelled):
        stacked.run(config, lambda: asked.append(1) or len(asked) > 3)
    assert len(asked) == 4
    short = canonical(RunConfig(window=4, init_seed=21, steps=3))
    assert stacked.run(short)[1] == stacked.run(short)[1]


@pytest.mark.parametrize("fields", [{"start": "orthogonal"}, {"clip": 1.0}, {"model": "gru"}, {"positions": "none"}])
def test_what_a_stack_cannot_do_is_left_to_others(fields):
    model = {"model": "attention"} if "positions" in fields else {}
    assert not stacked.supports(canonical(RunConfig(**(model | fields))))
