"""The training loop is the lesson's loop, and the score is what numpy makes of the predictions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator, nn
from torch.nn.functional import mse_loss

from explorer.config import RunConfig
from explorer.models import MODELS, Model, build
from explorer.tasks import TASKS, FirstValue
from explorer.training import Cancelled, Trained, moments, score, train

LESSON = RunConfig(model="rnn", hidden=8, steps=60, learning_rate=0.01, sequences=32, init_seed=1, data_seed=10)
TRAINED = [name for name in MODELS if build(RunConfig(model=name), TASKS["first"].shape(32)).parameter_count]
UNTRAINED = [name for name in MODELS if name not in TRAINED]
PAIRS = [(name, task) for name in TRAINED for task in TASKS]


def made(config: RunConfig) -> Model:
    return build(config, TASKS[config.task].shape(config.window))


def trained(config: RunConfig, **options) -> Trained:
    return train(config, made(config), TASKS[config.task], **options)


def unflat(model: Model, weights: np.ndarray) -> Model:
    """The model with these numbers as its parameters, one after the other."""
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, part in zip(model.parameters(), np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
        parameter.data = torch.from_numpy(part.copy()).reshape(parameter.shape)
    return model


class Watched(FirstValue):
    """The first task, which remembers what it has drawn."""

    def __init__(self):
        self.drawn: list[torch.Tensor] = []

    def sample(self, count, window, generator):
        inputs, targets = super().sample(count, window, generator)
        self.drawn.append(inputs)
        return inputs, targets


# The lesson


class RecallRNN(nn.Module):
    """The lesson's network, with torch's own cells and torch's global seed."""

    def __init__(self, cell: type[nn.RNNBase]):
        super().__init__()
        self.cell = cell(1, 8, batch_first=True)
        self.readout = nn.Linear(8, 1)

    def forward(self, inputs):
        states, _ = self.cell(inputs)
        return self.readout(states[:, -1])


def make(count: int, window: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.rand(count, window, 1, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, 0]


def train_and_score(cell: type[nn.RNNBase], window: int) -> tuple[list[float], float]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = RecallRNN(cell)
    inputs, targets = make(32, window, 10)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(60):
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    inputs, targets = make(64, window, 20)
    with torch.no_grad():
        return losses, mse_loss(model(inputs), targets).item()


@pytest.mark.parametrize("window", [5, 32])
@pytest.mark.parametrize(("name", "cell"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_training_gives_the_losses_of_the_lessons_own_loop(name, cell, window):
    config = replace(LESSON, model=name, window=window, test_sequences=64)
    model = made(config)
    losses, test_loss = train_and_score(cell, window)
    np.testing.assert_allclose(train(config, model, TASKS["first"]).train_loss, losses, rtol=1e-5, atol=1e-7)
    assert score(config, model, TASKS["first"]).loss == pytest.approx(test_loss, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "window", "printed"),
    [("rnn", 5, "0.0208"), ("rnn", 32, "0.1692"), ("mean", 5, "0.0699"), ("mean", 32, "0.0850")],
)
def test_the_lessons_numbers_come_out_to_the_last_digit(model, window, printed):
    config = replace(LESSON, model=model, window=window, test_sequences=64)
    network = made(config)
    train(config, network, TASKS["first"])
    assert f"{score(config, network, TASKS['first']).loss:.4f}" == printed


@pytest.mark.parametrize("window", [5, 32])
def test_attention_solves_both_of_the_lessons_windows(window):
    config = replace(LESSON, model="attention", window=window, test_sequences=64)
    network = made(config)
    train(config, network, TASKS["first"])
    assert score(config, network, TASKS["first"]).loss < 0.001


# One step, by finite differences and an Adam written out


def loss_of(config: RunConfig, weights: np.ndarray, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    with torch.no_grad():
        model = unflat(made(config).double(), weights)
        return mse_loss(model(inputs.double()), targets.double()).item()


def slopes(config: RunConfig, weights: np.ndarray, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """The gradient by central differences, in double precision."""
    gradient = np.empty_like(weights)
    for i in range(len(weights)):
        up, down = weights.copy(), weights.copy()
        up[i] += 1e-5
        down[i] -= 1e-5
        gradient[i] = (loss_of(config, up, inputs, targets) - loss_of(config, down, inputs, targets)) / 2e-5
    return gradient


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_two_steps_are_those_of_adam_on_gradients_by_finite_differences(name, task):
    config = RunConfig(model=name, task=task, window=4, hidden=2, width=3, steps=2, sequences=6, learning_rate=0.02)
    result = trained(config)
    inputs, targets = TASKS[task].sample(6, 4, Generator().manual_seed(config.data_seed))
    weights = result.weights[0].astype(float)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    smallest = np.full_like(weights, np.inf)
    for step in (1, 2):
        assert result.train_loss[step - 1] == pytest.approx(loss_of(config, weights, inputs, targets), rel=1e-4)
        gradient = slopes(config, weights, inputs, targets)
        smallest = np.minimum(smallest, np.abs(gradient))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        weights -= 0.02 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        clear = smallest > 1e-6  # below, rounding decides the direction in which Adam goes
        assert clear.mean() > 0.8
        assert list(result.moments) == [0, 1, 2]
        np.testing.assert_allclose(result.weights[step][clear], weights[clear], atol=2e-4)


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_every_trained_weight_is_reached_by_training(name, task):
    config = RunConfig(model=name, task=task, window=8, steps=5)
    result = trained(config)
    assert (result.weights[0] != result.weights[-1]).mean() > 0.99


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_training_lowers_the_training_loss(name, task):
    losses = trained(RunConfig(model=name, task=task, window=8, steps=60)).train_loss
    assert losses[-1] < 0.95 * losses[0]


# What is kept


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 18, 19, 20, 21, 60, 61, 399, 5000])
def test_the_moments_run_from_the_start_to_the_last_step_and_are_at_most_twenty(steps):
    kept = moments(steps)
    assert kept[0] == 0 and kept[-1] == steps
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= 20
    assert steps < 60 or len(kept) >= 15


@pytest.mark.parametrize("steps", [0, 1, 2, 19, 20, 60])
@pytest.mark.parametrize("name", TRAINED)
def test_weights_are_kept_at_the_moments_and_losses_at_every_step(name, steps):
    config = RunConfig(model=name, window=4, steps=steps)
    model = made(config)
    start = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().copy()
    result = train(config, model, TASKS["first"])
    last = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()
    assert np.array_equal(result.moments, moments(steps))
    assert result.weights.shape == (len(result.moments), len(start))
    assert result.train_loss.shape == (steps,)
    assert np.array_equal(result.weights[0], start)
    assert np.array_equal(result.weights[-1], last)
    assert len(np.unique(result.weights, axis=0)) == len(result.moments)


@pytest.mark.parametrize("name", TRAINED)
def test_the_weights_at_a_moment_are_those_of_a_run_that_stops_there(name):
    config = RunConfig(model=name, window=4, steps=60)
    result = trained(config)
    for i in (1, 7, 12):
        shorter = trained(replace(config, steps=int(result.moments[i])))
        assert np.array_equal(result.weights[i], shorter.weights[-1])


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_baseline_has_nothing_to_train_and_nothing_to_keep(name):
    heard = []
    result = trained(RunConfig(model=name), listen=lambda *step: heard.append(step))
    assert result.train_loss.shape == (0,) and result.weights.shape == (1, 0) and list(result.moments) == [0]
    assert heard == []


@pytest.mark.parametrize("learning_rate", [1e-6, 1.0])
@pytest.mark.parametrize("name", TRAINED)
def test_the_ends_of_the_learning_rate_train_without_an_error(name, learning_rate):
    result = trained(RunConfig(model=name, window=4, steps=5, learning_rate=learning_rate))
    assert np.abs(result.weights[-1] - result.weights[0]).max() == pytest.approx(5 * learning_rate, rel=0.9)


# Sequences, curriculum, clip


def test_the_same_sequences_train_throughout():
    task, config = Watched(), RunConfig(window=4, steps=5, sequences=3)
    train(config, made(config), task)
    assert len(task.drawn) == 1
    assert torch.equal(task.drawn[0], make(3, 4, 10)[0])


def test_fresh_training_draws_new_sequences_for_every_step():
    task, config = Watched(), RunConfig(window=4, steps=5, sequences=3, fresh=True)
    train(config, made(config), task)
    assert torch.equal(torch.cat(task.drawn), make(15, 4, 10)[0])  # one stream, of which each step takes its part
    assert len(task.drawn) == 5


def test_fresh_training_learns_from_what_it_draws():
    config = RunConfig(model="rnn", window=4, steps=5, sequences=3, fresh=True)
    kept, fresh = trained(replace(config, fresh=False)), trained(config)
    assert fresh.train_loss[0] == kept.train_loss[0]
    assert not np.isclose(fresh.train_loss[1:], kept.train_loss[1:]).any()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_curriculum_goes_through_its_windows(fresh):
    task = Watched()
    config = RunConfig(window=8, steps=6, sequences=3, fresh=fresh, curriculum=((2, 1), (4, 2), (8, 3)))
    heard = []
    train(config, made(config), task, listen=lambda step, _: heard.append((step, task.drawn[-1].shape[1])))
    assert heard == [(1, 2), (2, 4), (3, 4), (4, 8), (5, 8), (6, 8)]
    assert len(task.drawn) == (6 if fresh else 3)


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_every_model_and_task_can_follow_a_curriculum(name, task):
    config = RunConfig(model=name, task=task, window=8, steps=4, curriculum=((4, 1), (2, 1), (8, 2)))
    result = trained(config)
    assert result.train_loss.shape == (4,) and np.isfinite(result.train_loss).all()
    assert list(result.moments) == [0, 1, 2, 3, 4]


def test_the_first_stage_of_a_curriculum_is_the_plain_run_at_its_window():
    staged = trained(RunConfig(model="rnn", window=16, steps=20, curriculum=((4, 8), (16, 12))))
    plain = trained(RunConfig(model="rnn", window=4, steps=8))
    assert np.array_equal(staged.train_loss[:8], plain.train_loss)
    assert not np.isclose(staged.train_loss[8], plain.train_loss[-1])


def test_a_curriculum_of_one_stage_is_no_curriculum():
    config = RunConfig(model="gru", window=8, steps=7)
    staged = trained(replace(config, curriculum=((8, 7),)))
    assert np.array_equal(staged.weights, trained(config).weights)


@pytest.mark.parametrize("name", TRAINED)
def test_clip_bounds_the_norm_of_the_gradient(name):
    config = RunConfig(model=name, window=4, steps=10)

    def norms(config: RunConfig) -> list[float]:
        model, found = made(config), []

        def listen(step, loss):
            found.append(math.sqrt(sum((p.grad**2).sum().item() for p in model.parameters())))

        train(config, model, TASKS["first"], listen)
        return found

    free = norms(config)
    bound = max(free) / 3
    assert max(norms(replace(config, clip=bound))) <= bound * (1 + 1e-5)
    assert norms(replace(config, clip=2 * max(free))) == pytest.approx(free, rel=1e-5)


# Listening and stopping


def test_a_listener_hears_every_step_and_its_loss():
    heard = []
    result = trained(RunConfig(window=4, steps=7), listen=lambda step, loss: heard.append((step, loss)))
    assert [step for step, _ in heard] == [1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_allclose([loss for _, loss in heard], result.train_loss, rtol=1e-6)


@pytest.mark.parametrize("name", TRAINED)
def test_a_cancelled_run_stops_at_the_next_step(name):
    heard = []
    with pytest.raises(Cancelled):
        trained(
            RunConfig(model=name, window=4, steps=5000),
            listen=lambda step, _: heard.append(step),
            cancelled=lambda: len(heard) == 3,
        )
    assert heard == [1, 2, 3]


def test_a_run_cancelled_before_it_starts_trains_no_step():
    config, heard = RunConfig(window=4), []
    model = made(config)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(Cancelled):
        train(config, model, TASKS["first"], lambda *step: heard.append(step), lambda: True)
    assert heard == []
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_scoring_can_be_cancelled(name):
    config = RunConfig(model=name)
    with pytest.raises(Cancelled):
        score(config, made(config), TASKS["first"], lambda: True)


# Scoring


def drawn_for_the_test(config: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return TASKS[config.task].sample(config.test_sequences, config.window, Generator().manual_seed(config.test_seed))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MODELS)
def test_the_score_is_what_numpy_makes_of_the_predictions(name, task):
    config = RunConfig(model=name, task=task, window=6, steps=30, test_sequences=500)
    model = made(config)
    train(config, model, TASKS[task])
    inputs, targets = drawn_for_the_test(config)
    prediction, target = model(inputs).detach().double().numpy(), targets.double().numpy()
    scored = score(config, model, TASKS[task])
    assert scored.loss == pytest.approx(((prediction - target) ** 2).mean(), rel=1e-5)
    if np.ptp(prediction, axis=0).max() > 0:
        squared = [np.corrcoef(p, t)[0, 1] ** 2 for p, t in zip(prediction.T, target.T, strict=True)]
        assert scored.r2 == pytest.approx(np.mean(squared), rel=1e-4)
    else:
        assert scored.r2 == 0


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_that_never_varies_has_no_correlation(task):
    config = RunConfig(model="constant", task=task)
    assert score(config, made(config), TASKS[task]).r2 == 0


def test_a_perfect_answer_has_loss_zero_and_correlation_one():
    config = RunConfig(model="attention", window=5)
    model = made(config)
    model.positions.data.zero_()
    model.positions.data[0, 0] = 1
    model.key.data = 40 * torch.eye(16)
    model.query.data.fill_(40)
    scored = score(config, model, TASKS["first"])
    assert scored.loss == pytest.approx(0, abs=1e-12)
    assert scored.r2 == pytest.approx(1, abs=1e-12)


def test_missing_information_and_miscalibration_are_told_apart():
    # A wrong scale leaves the correlation and costs error: ŷ = (1 + x_1)/2 gives r² = 1 and E((1 − x_1)/2)² = 1/12.
    class Shifted(Model):
        def forward(self, inputs):
            return (1 + inputs[:, 0]) / 2

    config = RunConfig(window=5)
    scored = score(config, Shifted(), TASKS["first"])
    assert scored.r2 == pytest.approx(1, abs=1e-9)
    assert scored.loss == pytest.approx(1 / 12, rel=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_scoring_in_parts_gives_what_scoring_at_once_gives(name):
    config = RunConfig(model=name, window=128, hidden=64, test_sequences=601)  # more than one part, the last one uneven
    model = made(config)
    inputs, targets = drawn_for_the_test(config)
    with torch.no_grad():
        at_once = mse_loss(model(inputs).double(), targets.double()).item()
    asked = []
    parts = score(config, model, TASKS["first"], lambda: bool(asked.append(1)))
    assert parts.loss == pytest.approx(at_once, rel=1e-6)
    assert len(asked) > 1 or model.inside != "hidden"


def test_scoring_does_not_depend_on_the_training_data_seed():
    config = RunConfig(model="mean")
    assert score(config, made(config), TASKS["first"]) == score(
        replace(config, data_seed=11), made(config), TASKS["first"]
    )
    assert score(config, made(config), TASKS["first"]) != score(
        replace(config, test_seed=21), made(config), TASKS["first"]
    )
