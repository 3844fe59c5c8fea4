"""A config accepts what the design allows, refuses everything else in words, and survives being written down."""

import dataclasses
import json
import math

import pytest

from explorer.config import CHOICES, CLIP_RANGE, LEARNING_RATE_RANGE, RANGES, RunConfig

PUBLISHED_LIMITS = {
    "window": (2, 1024),
    "hidden": (1, 64),
    "steps": (0, 5000),
    "sequences": (1, 4096),
    "init_seed": (0, 2147483647),
    "data_seed": (0, 2147483647),
    "test_seed": (0, 2147483647),
}
ENDS = [(name, end) for name, limits in RANGES.items() for end in limits]
BEYOND = [(name, end) for name, (low, high) in RANGES.items() for end in (low - 1, high + 1)]
NOT_WHOLE = [1.5, 8.0, "abc", "8", True, None, math.nan, math.inf, [8], (8,), {}]
NUMBERS = {"learning_rate": LEARNING_RATE_RANGE, "clip": CLIP_RANGE}
NOT_A_NUMBER = ["abc", "0.01", True, math.nan, math.inf, -math.inf, [0.01], 1 + 0j]


def refusal(**values) -> str:
    """The sentence with which a config is refused."""
    with pytest.raises(ValueError) as refused:
        RunConfig(**values)
    return str(refused.value)


def test_the_limits_are_the_published_ones():
    assert {name: RANGES[name] for name in PUBLISHED_LIMITS} == PUBLISHED_LIMITS


@pytest.mark.parametrize(("name", "value"), ENDS)
def test_both_ends_of_a_range_are_accepted(name, value):
    assert getattr(RunConfig(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_one_beyond_a_range_is_refused_with_field_value_and_range(name, value):
    low, high = RANGES[name]
    assert refusal(**{name: value}) == f"{name} is {value}; it must be a whole number from {low} to {high}"


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_what_is_no_whole_number_is_refused_with_field_value_and_range(name, value):
    low, high = RANGES[name]
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a whole number from {low} to {high}"


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_number_are_accepted_and_just_beyond_is_refused(name):
    low, high = NUMBERS[name]
    for value in (low, high):
        assert getattr(RunConfig(**{name: value}), name) == value
    for value in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), 0, -0.01):
        assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a number from {low:g} to {high:g}"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=repr)
def test_what_is_no_number_is_refused_with_field_value_and_range(name, value):
    low, high = NUMBERS[name]
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a number from {low:g} to {high:g}"


@pytest.mark.parametrize("name", NUMBERS)
def test_a_whole_number_too_large_for_a_float_is_refused_like_any_other(name):
    assert refusal(**{name: 10**400}).startswith(f"{name} is 1000")


def test_no_clip_is_none_and_no_learning_rate_is_refused():
    assert RunConfig(clip=None).clip is None
    assert refusal(learning_rate=None).startswith("learning_rate is None")


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_accepts_each_of_its_words_and_refuses_others_by_listing_them(name):
    for value in CHOICES[name]:
        assert getattr(RunConfig(**{name: value}), name) == value
    for value in ("", "Default", CHOICES[name][0].upper(), None, 0, True, [CHOICES[name][0]]):
        assert refusal(**{name: value}) == f"{name} is {value!r}; it must be one of {', '.join(CHOICES[name])}"


@pytest.mark.parametrize("name", ["task", "model"])
@pytest.mark.parametrize("value", [None, 1, True, ["rnn"]], ids=repr)
def test_a_task_and_a_model_are_names(name, value):
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a name"


@pytest.mark.parametrize("value", [0, 1, "true", None], ids=repr)
def test_fresh_is_true_or_false_and_nothing_like_it(value):
    assert refusal(fresh=value) == f"fresh is {value!r}; it must be True or False"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunConfig)])
def test_every_field_is_checked(name):
    assert refusal(**{name: object()}).startswith(f"{name} is <object")


@pytest.mark.parametrize(
    "stages",
    [
        (),
        ((32, 60),),
        ((4, 10), (8, 20), (16, 20), (32, 10)),
        ((32, 0), (32, 60)),
        ((16, 30), (4, 20), (32, 10)),
        ((2, 60), (32, 0)),
    ],
    ids=repr,
)
def test_a_curriculum_that_ends_at_the_window_and_adds_up_to_the_steps_is_accepted(stages):
    config = RunConfig(curriculum=stages)
    assert config.stages() == (stages or ((32, 60),))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (((4, 30), (16, 30)), "must end at window 32"),
        (((64, 30), (32, 30)), "never go above it"),
        (((4, 30), (32, 31)), "must add up to steps, 60"),
        (((4, 30), (32, 29)), "must add up to steps, 60"),
        (((1, 30), (32, 30)), "must be 2 to 1024"),
        (((4, -1), (32, 61)), "0 or more"),
        (((32, 60.0),), "pairs (window, steps) of whole numbers"),
        (((32, True),), "pairs (window, steps) of whole numbers"),
        (((32, 60, 1),), "pairs (window, steps) of whole numbers"),
        ((32, 60), "pairs (window, steps) of whole numbers"),
        ([(32, 60)], "pairs (window, steps) of whole numbers"),
        (([32, 60],), "pairs (window, steps) of whole numbers"),
        (None, "pairs (window, steps) of whole numbers"),
        ("abc", "pairs (window, steps) of whole numbers"),
    ],
    ids=repr,
)
def test_any_other_curriculum_is_refused_with_the_reason(stages, reason):
    sentence = refusal(curriculum=stages)
    assert sentence.startswith(f"curriculum is {stages!r}; ")
    assert reason in sentence


UNUSUAL = RunConfig(
    task="any",
    model="gru",
    window=64,
    hidden=5,
    width=7,
    positions="sinusoidal",
    keys="position+content",
    start="chrono",
    steps=9,
    learning_rate=0.003,
    clip=0.25,
    sequences=11,
    fresh=True,
    init_seed=2147483647,
    data_seed=0,
    test_sequences=2,
    test_seed=3,
    curriculum=((4, 2), (64, 7)),
)


@pytest.mark.parametrize("config", [RunConfig(), UNUSUAL], ids=["defaults", "unusual"])
def test_a_config_comes_back_equal_from_its_dictionary_and_from_json(config):
    values = config.to_dict()
    assert list(values) == [field.name for field in dataclasses.fields(RunConfig)]
    assert RunConfig.from_dict(values) == config
    assert RunConfig.from_dict(json.loads(json.dumps(values))) == config


def test_the_round_trip_was_tried_with_every_field_away_from_its_default():
    assert all(getattr(UNUSUAL, field.name) != field.default for field in dataclasses.fields(RunConfig))


@pytest.mark.parametrize("name", NUMBERS)
def test_equal_configs_are_written_down_alike(name):
    whole, fraction = RunConfig(**{name: 1}), RunConfig(**{name: 1.0})
    assert whole == fraction
    assert json.dumps(whole.to_dict()) == json.dumps(fraction.to_dict())


def test_a_dictionary_may_leave_fields_out():
    assert RunConfig.from_dict({"window": 5}) == RunConfig(window=5)
    assert RunConfig.from_dict({}) == RunConfig()


def test_a_dictionary_is_not_changed_by_reading_it():
    values = UNUSUAL.to_dict()
    RunConfig.from_dict(values)
    assert values == UNUSUAL.to_dict()


def test_foreign_fields_are_refused_by_name_beside_those_that_exist():
    with pytest.raises(ValueError) as refused:
        RunConfig.from_dict({"windw": 5, "window": 5, "colour": "red"})
    sentence = str(refused.value)
    assert "'colour'" in sentence and "'windw'" in sentence and "'window'" not in sentence
    assert all(field.name in sentence for field in dataclasses.fields(RunConfig))


def test_values_out_of_range_are_refused_from_a_dictionary_too():
    with pytest.raises(ValueError, match="window is 5000; it must be a whole number from 2 to 1024"):
        RunConfig.from_dict({"window": 5000})


@pytest.mark.parametrize("stages", [5, None, [32, 60], [[32, "60"]], [[32]], "abc", {"32": 60}], ids=repr)
def test_a_damaged_curriculum_in_a_dictionary_is_a_value_error_like_any_other(stages):
    with pytest.raises(ValueError, match="curriculum is "):
        RunConfig.from_dict({"curriculum": stages})


def test_a_config_cannot_be_changed_and_can_be_a_key():
    config = RunConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.window = 5
    assert {config: "found"}[RunConfig()] == "found"
    assert hash(RunConfig(curriculum=((32, 60),))) == hash(RunConfig(curriculum=((32, 60),)))
    assert RunConfig(init_seed=2) != config


def test_a_changed_copy_is_checked_again():
    with pytest.raises(ValueError, match="hidden is 0"):
        dataclasses.replace(RunConfig(), hidden=0)
