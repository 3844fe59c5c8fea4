"""The table of controls: every setting explains itself, every link is read or refused, every preset can be run."""

import itertools
from dataclasses import fields, replace

import pytest
from streamlit.testing.v1 import AppTest

from explorer.config import RANGES, RunConfig
from explorer.experiment import canonical, grid
from explorer.models import MODELS
from explorer.ui.settings import (
    ALL,
    BY_KEY,
    CONTROLS,
    CURVE,
    HIDDEN,
    PRESET_KEYS,
    PRESETS,
    Settings,
    ignored_by_link,
)

each_control = pytest.mark.parametrize("control", CONTROLS, ids=[control.key for control in CONTROLS])
each_preset = pytest.mark.parametrize("preset", PRESETS)
DEFAULTS = {control.key: control.default for control in CONTROLS}

# What no control takes; the last one is longer than Python reads as a number.
NONSENSE = ("nonsense", "1.5", "--5", "-", "5-", "inf", "-inf", "nan", "1e3", "-1", "99999999999", "9" * 5000, "²")


def texts(control, value):
    """A value as the link spells it."""
    return [control.show(part) for part in value] if control.kind in ("many", "range") else [control.show(value)]


def values(control):
    """Some values that the control can take, the default and the extremes among them."""
    options = control.options
    if control.kind == "many":
        return [list(options), [options[0]], list(options[2:4]), control.default]
    if control.kind == "range":
        return [(options[0], options[-1]), (options[1], options[1]), (options[1], options[2]), control.default]
    return [*options, control.default]


def drawn_with(link):
    """What every control says when a visitor comes with this link."""

    def script():
        import streamlit as st

        from explorer.ui.settings import CONTROLS, note_ignored_link

        note_ignored_link()
        st.session_state.drawn = {control.key: control.draw() for control in CONTROLS}

    page = AppTest.from_function(script)
    for key, value in link.items():
        page.query_params[key] = value
    page.run(timeout=60)
    assert not page.exception, page.exception[0].message
    return page.session_state.drawn, [warning.value for warning in page.warning]


# The table


@each_control
def test_every_control_has_a_label_and_a_help_sentence(control):
    assert control.label.strip() and control.label[0].isupper() and not control.label.endswith((".", ":"))
    assert control.help.endswith(".") and control.help[0].isupper()
    assert len(control.help.split()) >= 5
    assert "  " not in control.help


@each_control
def test_every_control_takes_its_default_and_each_of_its_values(control):
    for value in values(control):
        assert control.accepts(texts(control, value)), value


@each_control
def test_every_control_says_what_it_takes(control):
    if isinstance(control.options, range):
        assert control.allowed() == f"{min(control.options)} to {max(control.options)}"
        return
    for option in control.options:
        assert control.show(option) in control.allowed()


def test_keys_and_labels_are_not_repeated_on_a_page():
    assert len(BY_KEY) == len(CONTROLS)
    for page in ALL:
        labels = [control.label for control in CONTROLS if page in control.pages]
        assert len(set(labels)) == len(labels)


@each_control
def test_a_control_hides_only_for_models_that_do_not_read_its_field(control):
    if control.reads:
        assert control.reads in {field.name for field in fields(RunConfig)}
        assert any(control.reads in kind.reads for kind in MODELS.values())
    assert control.pages and set(control.pages) <= set(ALL)


def test_at_most_eight_settings_are_in_sight():
    for page in ALL:
        assert len([c for c in CONTROLS if page in c.pages and not c.more]) <= 8


@each_control
def test_ranges_lie_within_those_of_the_config(control):
    low, high = RANGES.get({"seed": "init_seed"}.get(control.key, control.key), (None, None))
    if low is not None:
        assert all(low <= option <= high for option in control.options if option != "fresh")


def test_the_defaults_are_those_of_the_config():
    assert Settings(DEFAULTS).base == RunConfig()


@each_control
def test_every_value_of_every_control_can_be_run(control):
    for value, task in itertools.product(values(control), BY_KEY["task"].options):
        settings = Settings(DEFAULTS | {"task": task, control.key: value})
        for model, window in itertools.product(MODELS, (settings.window, *settings.curve_windows[-1:])):
            canonical(replace(settings.base, model=model, window=window))


def test_windows_of_the_curve_are_the_powers_of_two_of_the_range():
    assert Settings({"windows": (8, 64)}).curve_windows == [8, 16, 32, 64]
    assert Settings({"windows": (16, 16)}).curve_windows == [16]


def test_fresh_sequences_take_their_number_from_the_batch():
    fresh = Settings(DEFAULTS | {"sequences": "fresh", "batch": 64}).base
    assert (fresh.fresh, fresh.sequences) == (True, 64)
    same = Settings(DEFAULTS | {"sequences": 128, "batch": 64}).base
    assert (same.fresh, same.sequences) == (False, 128)


# Presets


@each_preset
def test_presets_set_settings_that_exist_to_values_they_take(preset):
    for key, value in PRESETS[preset].items():
        control = BY_KEY[key]
        assert control.accepts(texts(control, value)), key
        assert key in PRESET_KEYS
        assert value != control.default or control.kind == "many", f"{key} is at its default anyway"
        if control.kind == "many":  # the widget gives them in this order, and the preset must know itself again
            assert value == [option for option in control.options if option in value]


@each_preset
def test_every_run_of_a_preset_is_valid(preset):
    settings = Settings(DEFAULTS | PRESETS[preset])
    curve = grid(
        settings.base, settings.models, settings.curve_windows, range(1, settings.seeds + 1), [settings.data_seed]
    )
    assert {config.model for config in curve} == set(settings.models)
    assert {config.window for config in curve} == set(settings.curve_windows)
    for model in MODELS:
        canonical(replace(settings.base, model=model, window=settings.window, init_seed=settings.seed))


def test_presets_differ():
    wholes = [str(DEFAULTS | chosen) for chosen in PRESETS.values()]
    assert len(set(wholes)) == len(wholes)


def test_the_first_preset_is_where_a_visitor_starts():
    assert next(iter(PRESETS.values())) == {}


def test_presets_leave_alone_what_the_visitor_looks_at():
    assert set(PRESET_KEYS) == set(BY_KEY) - {"cell", "seed", "sequence", "loss_axis"}


# Links


@each_control
def test_a_link_with_a_value_that_exists_is_followed(control):
    for value in values(control):
        assert ignored_by_link({control.key: texts(control, value)}) == []


@each_control
def test_a_link_with_a_value_that_does_not_exist_is_refused_with_what_could_be(control):
    good = texts(control, control.default)
    for text in NONSENSE:
        (sentence,) = ignored_by_link({control.key: [*good[:-1], text]})
        assert control.label in sentence
        assert text in sentence
        assert control.allowed() in sentence
        assert sentence.endswith(".")


@each_control
def test_a_link_with_a_value_just_outside_a_range_is_refused(control):
    if isinstance(control.options, range):
        low, high = control.options[0], control.options[-1]
        for number in (low - 1, high + 1):
            assert len(ignored_by_link({control.key: [str(number)]})) == 1
        for number in (low, high):
            assert ignored_by_link({control.key: [str(number)]}) == []


@each_control
def test_a_link_with_too_many_or_too_few_values_is_refused(control):
    options = [control.show(option) for option in control.options[:3]]
    if control.kind == "many":
        assert ignored_by_link({control.key: options}) == []
    elif control.kind == "range":
        assert len(ignored_by_link({control.key: options[:1]})) == 1
        assert len(ignored_by_link({control.key: options})) == 1
    else:
        assert len(ignored_by_link({control.key: options[:2]})) == 1


def test_no_model_at_all_is_a_choice_like_another():
    """Streamlit writes it to the link as a name without a value."""
    assert ignored_by_link({"models": [""]}) == []


@each_control
def test_a_name_without_a_value_is_refused_where_one_is_needed(control):
    if control.kind != "many":
        (sentence,) = ignored_by_link({control.key: [""]})
        assert control.label in sentence and "nothing" in sentence


def test_a_foreign_name_in_a_link_is_named():
    (sentence,) = ignored_by_link({"colour": ["red"], "hidden": ["16"]})
    assert "colour" in sentence


def test_each_refusal_is_a_sentence_of_its_own():
    link = {"hidden": ["999"], "steps": ["60"], "foo": ["1"], "models": ["RNN", "Transformer"]}
    sentences = ignored_by_link(link)
    assert len(sentences) == 3
    assert "Hidden units = 999" in sentences[0] and "1 to 64" in sentences[0]
    assert "foo" in sentences[1]
    assert "Transformer" in sentences[2] and "Attention" in sentences[2]
    assert ignored_by_link({}) == []


@pytest.mark.parametrize("which", range(3))
def test_streamlit_follows_every_link_that_is_not_refused(which):
    chosen = {control.key: values(control)[which % len(values(control))] for control in CONTROLS}
    link = {control.key: texts(control, chosen[control.key]) for control in CONTROLS}
    drawn, warnings = drawn_with(link)
    assert drawn == chosen
    assert warnings == []


@pytest.mark.parametrize(
    "text", ["nonsense", "", "1.5", "--5", "inf", "nan", "1e3", "9" * 5000], ids=lambda text: text[:9]
)
def test_what_is_refused_is_left_out_as_the_page_says(text):
    link = {c.key: [*texts(c, c.default)[:-1], text] if c.kind == "range" else [text] for c in CONTROLS}
    link = {key: value for key, value in link.items() if not BY_KEY[key].accepts(value)}
    drawn, (warning,) = drawn_with(link)
    for key in link:
        assert drawn[key] == BY_KEY[key].default, key
        assert BY_KEY[key].label in warning


def test_the_rest_of_a_link_is_followed_where_a_part_is_refused():
    drawn, (warning,) = drawn_with({"hidden": ["16"], "steps": ["61"], "windows": ["3", "999"], "data_seed": ["inf"]})
    assert drawn == DEFAULTS | {"hidden": 16}
    assert "Training steps = 61" in warning and "Hidden units" not in warning


def test_each_page_has_the_settings_that_its_picture_needs():
    assert {"models", "windows", "seeds"} <= {c.key for c in CONTROLS if CURVE in c.pages}
    assert {"cell", "window", "seed", "sequence"} <= {c.key for c in CONTROLS if HIDDEN in c.pages}
