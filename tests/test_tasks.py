"""The tasks draw what they say they draw, and their closed forms hold when measured."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Generator

from explorer.config import RunConfig, Shape
from explorer.models import MODELS, build
from explorer.tasks import TASKS, task_named

WINDOWS = (2, 5, 32, 100)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def measured(prediction: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """The mean squared error over sequences, and its standard error."""
    errors = ((prediction - targets).double() ** 2).mean(1)  # (B,)
    return errors.mean().item(), errors.std().item() / math.sqrt(len(errors))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", TASKS)
def test_sequences_and_targets_have_the_shape_the_task_announces(name, window):
    shape = TASKS[name].shape(window)
    inputs, targets = TASKS[name].sample(7, window, seeded(0))
    assert isinstance(shape, Shape)
    assert inputs.shape == (7, window, shape.features)
    assert targets.shape == (7, shape.targets)
    assert inputs.dtype == targets.dtype == torch.float32
    assert inputs[..., 0].min() >= 0 and inputs[..., 0].max() < 1


@pytest.mark.parametrize("name", TASKS)
def test_the_same_generator_state_gives_the_same_sequences_and_the_next_draw_is_new(name):
    generator = seeded(3)
    first, first_targets = TASKS[name].sample(5, 8, generator)
    second, _ = TASKS[name].sample(5, 8, generator)
    again, again_targets = TASKS[name].sample(5, 8, seeded(3))
    assert torch.equal(first, again) and torch.equal(first_targets, again_targets)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", TASKS)
def test_drawing_leaves_the_global_generator_alone(name):
    before = torch.random.get_rng_state()
    TASKS[name].sample(5, 8, seeded(0))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", TASKS)
def test_targets_are_a_copy_that_a_change_of_the_inputs_cannot_reach(name):
    inputs, targets = TASKS[name].sample(5, 8, seeded(0))
    before = targets.clone()
    inputs.zero_()
    assert torch.equal(targets, before)


def test_the_first_task_draws_the_lessons_data():
    inputs, targets = TASKS["first"].sample(32, 5, seeded(10))
    lesson = torch.rand(32, 5, 1, generator=torch.Generator().manual_seed(10))
    assert torch.equal(inputs, lesson)
    assert torch.equal(targets, lesson[:, 0])


def test_any_position_asks_for_every_value_in_order():
    inputs, targets = TASKS["any"].sample(32, 5, seeded(10))
    assert torch.equal(inputs, torch.rand(32, 5, 1, generator=torch.Generator().manual_seed(10)))
    assert torch.equal(targets, inputs[:, :, 0])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", TASKS)
def test_the_expected_target_is_the_mean_of_targets(name, window):
    _, targets = TASKS[name].sample(20_000, window, seeded(1))
    means = targets.double().mean(1)
    error = means.std().item() / math.sqrt(len(means))
    assert means.mean().item() == pytest.approx(TASKS[name].shape(window).expected, abs=3 * error)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", TASKS)
def test_the_closed_form_of_each_baseline_is_what_the_baseline_scores(name, window):
    task = TASKS[name]
    levels = task.levels(window, 8)
    baselines = [key for key in levels if key in MODELS]
    assert "constant" in baselines
    inputs, targets = task.sample(20_000, window, seeded(2))
    for key in baselines:
        loss, error = measured(build(RunConfig(model=key, window=window), task.shape(window))(inputs), targets)
        assert loss == pytest.approx(levels[key].value, abs=3 * error), key


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", TASKS)
def test_nothing_to_learn_scores_the_variance_of_the_target(name, window):
    _, targets = TASKS[name].sample(20_000, window, seeded(4))
    loss, error = measured(targets.double().mean(0, keepdim=True), targets)
    assert loss == pytest.approx(TASKS[name].levels(window, 8)["constant"].value, abs=3 * error)


@pytest.mark.parametrize("name", TASKS)
def test_every_closed_form_can_be_shown(name):
    for hidden in (1, 8, 64):
        for level in TASKS[name].levels(32, hidden).values():
            assert level.label and level.formula
            assert math.isfinite(level.value) and level.value >= 0
    assert TASKS[name].label and TASKS[name].sentence


@pytest.mark.parametrize("name", ["first", "any"])
def test_the_mean_level_has_the_published_values(name):
    values = [TASKS[name].levels(window, 8)["mean"].value for window in (4, 8, 16, 32, 64, 128)]
    assert [round(value, 4) for value in values] == [0.0625, 0.0729, 0.0781, 0.0807, 0.0820, 0.0827]


def test_knowing_nothing_costs_one_twelfth():
    assert round(TASKS["first"].levels(32, 8)["constant"].value, 4) == 0.0833
    assert round(TASKS["any"].levels(32, 8)["constant"].value, 4) == 0.0833


@pytest.mark.parametrize("window", WINDOWS)
def test_the_limit_of_one_number_is_the_mean_and_of_enough_numbers_zero(window):
    levels = TASKS["any"].levels(window, 1)
    assert levels["bound"].value == pytest.approx(levels["mean"].value, rel=1e-12)
    for hidden in (window, window + 1, 2 * window):
        assert TASKS["any"].levels(window, hidden)["bound"].value == 0


def test_the_limit_falls_by_one_share_for_every_number_carried():
    values = [TASKS["any"].levels(32, hidden)["bound"].value for hidden in range(1, 33)]
    steps = [before - after for before, after in pairwise(values)]
    assert steps == pytest.approx([1 / 12 / 32] * 31, rel=1e-9)


@pytest.mark.parametrize(("window", "hidden"), [(8, 1), (8, 3), (32, 8), (32, 31), (64, 8)])
def test_the_best_linear_compression_lands_on_the_limit(window, hidden):
    inputs, targets = TASKS["any"].sample(20_000, window, seeded(5))
    directions, _ = torch.linalg.qr(torch.randn(window, hidden, generator=seeded(6), dtype=torch.float64))  # (n, H)
    carried = (inputs[:, :, 0].double() - 0.5) @ directions  # (B, H): all that is kept of a sequence
    loss, error = measured(0.5 + carried @ directions.T, targets.double())
    assert loss == pytest.approx(TASKS["any"].levels(window, hidden)["bound"].value, abs=3 * error)


@pytest.mark.parametrize("trial", range(5))
def test_no_other_linear_compression_beats_the_limit(trial):
    window, hidden, generator = 16, 4, seeded(100 + trial)
    inputs, targets = TASKS["any"].sample(20_000, window, generator)
    carried = inputs[:, :, 0].double() @ torch.randn(window, hidden, generator=generator, dtype=torch.float64)
    known = torch.cat([carried, torch.ones(len(carried), 1, dtype=torch.float64)], 1)  # (B, H + 1)
    fitted = known @ torch.linalg.lstsq(known[:10_000], targets[:10_000].double()).solution
    loss, error = measured(fitted[10_000:], targets[10_000:].double())
    assert loss > TASKS["any"].levels(window, hidden)["bound"].value - 3 * error


def test_a_task_is_found_by_its_name_and_an_unknown_one_names_those_that_exist():
    for name, task in TASKS.items():
        assert task_named(name) is task
    with pytest.raises(ValueError, match=r"task is 'second'; it must be one of .*first.*any"):
        task_named("second")
