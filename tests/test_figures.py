"""A figure shows the numbers of its tables, all of them, and can be read."""

import functools
import itertools
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from explorer.config import RunConfig
from explorer.experiment import grid, run
from explorer.figures import (
    DARK,
    FLOOR,
    LABEL_PIXELS,
    LIGHT,
    SPARE,
    STYLES,
    THEMES,
    index_ticks,
    loss_curve,
    over_sequence,
    style,
)
from explorer.measures import attention_table, hidden_table, levels_table, runs_table, sequence, summary_table
from explorer.models import MODELS
from explorer.tasks import TASKS

SMALL = RunConfig(steps=5, hidden=3, sequences=8, test_sequences=64)
TRAINED = [name for name, kind in MODELS.items() if kind.reads]
BASELINES = [name for name, kind in MODELS.items() if not kind.reads]
INSIDE = [name for name, kind in MODELS.items() if kind.inside]
WINDOWS = [2, 4, 16]

both_themes = pytest.mark.parametrize("theme", list(THEMES.values()), ids=list(THEMES))
both_axes = pytest.mark.parametrize("log_loss", [False, True], ids=["linear", "log"])


@pytest.fixture(scope="module", params=TASKS)
def tables(request):
    base = replace(SMALL, task=request.param)
    runs = runs_table([run(config) for config in grid(base, list(MODELS), WINDOWS, [1, 2, 3], [10])])
    return runs, summary_table(runs), levels_table(base, WINDOWS)


@pytest.fixture(scope="module")
def curve(tables):
    """The figure of the tables, made once for each theme and loss axis."""
    return functools.cache(lambda log_loss=False, theme=LIGHT: loss_curve(*tables, theme, log_loss))


def made_up(random, models, windows, low=-9.0, high=0.5, seeds=3):
    """Tables with losses anywhere from 1e-9 to 3, some of which diverged."""
    rows = [
        {
            "model": model,
            "label": MODELS[model].label,
            "window": window,
            "init_seed": seed,
            "test_loss": 10 ** random.uniform(low, high),
        }
        for model, window, seed in itertools.product(models, windows, range(1, seeds + 1))
    ]
    runs = pd.DataFrame(rows).assign(data_seed=10, r2=0.5, parameters=97, seconds=0.1)
    runs = runs.assign(solved=runs["test_loss"] < 0.01)
    levels = levels_table(replace(SMALL, task="any"), windows)
    return runs, summary_table(runs), levels[levels["key"].isin(models) | (levels["key"] == "bound")]


def trace(figure, name):
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == 1, f"{len(found)} traces are called {name}"
    return found[0]


def pixels(figure, y):
    """How far above the lower end of the upper plot a place on the loss axis is drawn."""
    layout = figure.layout
    low, high = layout.yaxis.range
    bottom, top = layout.yaxis.domain
    return (y - low) / (high - low) * (top - bottom) * (layout.height - layout.margin.t - layout.margin.b)


# The curve


@both_axes
@pytest.mark.parametrize("model", TRAINED)
def test_a_line_goes_through_the_medians_of_each_model(tables, curve, model, log_loss):
    runs = tables[0]
    line = trace(curve(log_loss), f"{MODELS[model].label}, median")
    assert "lines" in line.mode
    expected = [
        np.median(runs[(runs["model"] == model) & (runs["window"] == window)]["test_loss"]) for window in WINDOWS
    ]
    assert list(line.x) == WINDOWS
    assert list(line.y) == expected
    assert [row[0] for row in line.customdata] == expected


@both_axes
@pytest.mark.parametrize("model", MODELS)
def test_every_run_is_a_dot(tables, curve, model, log_loss):
    runs = tables[0]
    dots = trace(curve(log_loss), MODELS[model].label)
    own = runs[runs["model"] == model]
    assert dots.mode == "markers"
    assert list(dots.y) == own["test_loss"].tolist()
    assert np.array_equal(dots.customdata, own[["window", "init_seed", "data_seed", "test_loss"]].to_numpy(float))
    # Dots of several models stand side by side, yet nearer to their own window than a third of the way to the next.
    assert np.abs(np.log2(np.array(dots.x, float) / own["window"].to_numpy())).max() < 1 / 3


def test_dots_of_several_models_do_not_cover_each_other(curve):
    places = [set(trace(curve(), MODELS[model].label).x) for model in TRAINED]
    assert all(not one & other for one, other in itertools.combinations(places, 2))


@both_axes
def test_closed_forms_are_dashed_and_have_their_values(tables, curve, log_loss):
    for key, rows in tables[2].groupby("key"):
        line = trace(curve(log_loss), rows["label"].iloc[0])
        assert line.mode == "lines" and line.line.dash not in (None, "solid"), key
        assert list(line.x) == WINDOWS
        assert list(line.y) == [max(value, FLOOR) if log_loss else value for value in rows["value"]]
        assert list(line.customdata) == rows["formula"].tolist()


def test_closed_forms_are_drawn_without_any_run(tables):
    runs, summary, levels = tables
    figure = loss_curve(runs[:0], summary[:0], levels, LIGHT)
    assert {trace.name for trace in figure.data} == set(levels["label"])


def test_each_count_of_solved_seeds_stands_below_its_window(tables):
    runs, _, levels = tables
    solved = runs.assign(test_loss=np.where(runs["init_seed"] == 1, 0.001, 0.5))
    solved["solved"] = solved["test_loss"] < 0.01
    solved.loc[solved["window"] == 2, "solved"] = True
    figure = loss_curve(solved, summary_table(solved), levels, LIGHT)
    for model in TRAINED:
        counts = trace(figure, f"{MODELS[model].label}, solved")
        assert list(counts.x) == WINDOWS
        assert list(counts.text) == ["3/3", "1/3", "1/3"]
    rows = [trace(figure, f"{MODELS[model].label}, solved").y[0] for model in TRAINED]
    assert rows == sorted(set(rows))  # a row for each model


@pytest.mark.parametrize("windows", [[2], [256], [2, 256], [4, 8, 16, 32, 64, 128], [3, 5, 700]], ids=str)
def test_windows_stand_at_their_logarithm_with_a_tick_each_inside_the_axis(windows):
    figure = loss_curve(*made_up(np.random.default_rng(1), ["rnn", "attention", "mean"], windows), LIGHT)
    axis = figure.layout.xaxis
    assert axis.type == "log"
    assert list(axis.tickvals) == windows
    assert list(axis.ticktext) == [str(window) for window in windows]
    low, high = axis.range
    assert low < math.log10(windows[0]) <= math.log10(windows[-1]) < high
    assert figure.layout.xaxis2.matches == "x" or list(figure.layout.xaxis2.range) == [low, high]


def test_the_loss_axis_is_logarithmic_only_where_asked(curve):
    assert curve().layout.yaxis.type == "linear"
    assert curve(log_loss=True).layout.yaxis.type == "log"


def test_a_log_axis_ends_at_the_floor_and_tells_the_true_loss_on_hover():
    tables = made_up(np.random.default_rng(2), ["attention"], [4, 8], low=-15, high=-12)
    runs, summary, _ = tables
    figure = loss_curve(*tables, LIGHT, log_loss=True)
    dots, line = trace(figure, "Attention"), trace(figure, "Attention, median")
    assert set(dots.y) == {FLOOR} and set(line.y) == {FLOOR}
    assert dots.customdata[:, 3].tolist() == runs["test_loss"].tolist()
    assert line.customdata[:, 0].tolist() == summary["median"].tolist()
    assert "customdata[3]" in dots.hovertemplate and "customdata[0]" in line.hovertemplate
    assert figure.layout.yaxis.range[0] < math.log10(FLOOR)  # on the picture, not below it
    linear = loss_curve(*tables, LIGHT)
    assert list(trace(linear, "Attention").y) == runs["test_loss"].tolist()


@pytest.mark.parametrize("zero", ["run", "closed form"])
def test_a_loss_of_zero_is_on_the_picture_of_a_log_axis(zero):
    runs, summary, levels = made_up(np.random.default_rng(2), ["rnn"], [2, 8], low=-2, high=-1)
    if zero == "run":
        runs.loc[0, "test_loss"] = 0.0
        summary, levels = summary_table(runs), levels[:0]
    else:
        assert (levels["value"] == 0).any()
    figure = loss_curve(runs, summary, levels, LIGHT, log_loss=True)
    lowest = min(min(trace.y) for trace in figure.data if trace.yaxis != "y2")
    assert figure.layout.yaxis.range[0] < math.log10(lowest)


@both_axes
def test_one_wild_run_does_not_flatten_the_picture(log_loss):
    runs, _, levels = made_up(np.random.default_rng(3), ["rnn", "attention"], [4, 8, 16], low=-2, high=-1, seeds=10)
    runs.loc[0, "test_loss"] = 1e6
    figure = loss_curve(runs, summary_table(runs), levels, LIGHT, log_loss)
    top = figure.layout.yaxis.range[1]
    assert (10**top if log_loss else top) < 2
    assert 1e6 in trace(figure, "RNN").y  # still there for those who zoom out


@both_axes
def test_runs_that_diverged_leave_a_picture_of_the_others(log_loss):
    runs, _, levels = made_up(np.random.default_rng(4), ["rnn", "gru"], [4, 8], low=-2, high=-1)
    runs.loc[runs["model"] == "rnn", "test_loss"] = np.nan
    runs.loc[runs.index[-1], "test_loss"] = np.inf
    figure = loss_curve(runs, summary_table(runs), levels, LIGHT, log_loss)
    assert len(trace(figure, "RNN").y) == 0
    assert len(trace(figure, "GRU").y) == 5
    assert np.isfinite(figure.layout.yaxis.range).all()
    assert all(np.isfinite(label.y) for label in figure.layout.annotations)


@both_axes
@pytest.mark.parametrize("with_levels", [False, True])
def test_nothing_is_no_reason_to_fail(tables, with_levels, log_loss):
    """Before the first run is there, and where no baseline is chosen, there is nothing to draw."""
    levels = tables[2] if with_levels else tables[2][:0]
    none = runs_table([])
    figure = loss_curve(none, summary_table(none), levels, LIGHT, log_loss)
    assert len(figure.data) == levels["key"].nunique()


# Labels at the lines' ends


@both_axes
@pytest.mark.parametrize("seed", range(2))
def test_labels_at_line_ends_never_overlap_and_stay_on_the_picture(seed, log_loss):
    random = np.random.default_rng(seed)
    for crowded in (True, False):
        models = [*random.choice(TRAINED, random.integers(1, len(TRAINED) + 1), replace=False), *BASELINES]
        tables = made_up(random, models, [8, 32], low=-1.1 if crowded else -9, high=-1.05 if crowded else 0.5)
        figure = loss_curve(*tables, LIGHT, log_loss)
        labels = figure.layout.annotations
        assert len(labels) == len(models) + 1  # and one for the limit
        places = sorted(pixels(figure, label.y) for label in labels)
        assert np.diff(places).min() >= LABEL_PIXELS
        assert places[0] >= 0 and places[-1] <= pixels(figure, figure.layout.yaxis.range[1])
        assert max(label.font.size for label in labels) < LABEL_PIXELS


@both_axes
@pytest.mark.parametrize("seed", range(2))
def test_labels_stand_in_the_order_of_their_lines_near_their_ends(seed, log_loss):
    tables = made_up(np.random.default_rng(seed), TRAINED, [8, 32], low=-3, high=-0.8)
    figure, summary = loss_curve(*tables, LIGHT, log_loss), tables[1]
    ends = summary[summary["window"] == 32].set_index("label")["median"].to_dict()
    labels = {label.text.removeprefix("<b>").removesuffix("</b>"): label for label in figure.layout.annotations}
    assert set(ends) < set(labels)
    assert sorted(ends, key=lambda name: labels[name].y) == sorted(ends, key=ends.get)
    for name, loss in ends.items():
        away = pixels(figure, labels[name].y) - pixels(figure, math.log10(loss) if log_loss else loss)
        assert abs(away) <= (len(labels) - 1) * LABEL_PIXELS + 8
        assert labels[name].x == pytest.approx(math.log10(32))


@both_themes
def test_a_lone_label_stands_at_the_end_of_its_line(theme):
    runs, summary, levels = made_up(np.random.default_rng(5), ["rnn"], [8, 32], low=-1.5, high=-1)
    figure = loss_curve(runs, summary, levels[:0], theme)
    (label,) = figure.layout.annotations
    assert label.y == pytest.approx(summary["median"].iloc[-1])
    assert label.font.color == style("rnn", theme).text


# Over the sequence


@pytest.mark.parametrize("values", [2, 5, 256])
@pytest.mark.parametrize("index", ["unit", "target"])
def test_a_heatmap_shows_each_value_at_its_place_below_the_sequence(index, values):
    random = np.random.default_rng(values)
    for rows in (1, min(values, 8)):
        low = -1 if index == "unit" else 0
        grid_of = random.uniform(low, 1, (rows, values))
        table = pd.DataFrame(
            {index: row + 1, "step": column + 1, "v": grid_of[row, column]} for row, column in np.ndindex(rows, values)
        )
        shuffled = table.sample(frac=1, random_state=1)
        read = random.random(values)
        figure = over_sequence(read, shuffled, (index, "step", "v"), LIGHT)
        bars, heatmap = figure.data
        assert (bars.type, heatmap.type) == ("bar", "heatmap")
        assert np.array_equal(heatmap.z, grid_of)
        assert list(heatmap.x) == list(bars.x) == list(range(1, values + 1))
        assert list(heatmap.y) == list(range(1, rows + 1))
        assert np.array_equal(bars.y, read)
        assert (heatmap.zmin, heatmap.zmax) == (low, 1)
        assert figure.layout.yaxis2.autorange == "reversed"  # the first unit on top
        assert list(figure.layout.xaxis.range) == [0.5, values + 0.5]
        assert list(figure.layout.yaxis.range) == [0, 1]
        assert figure.layout.height <= 640  # on one screen


@pytest.mark.parametrize(("window", "theme"), [(2, DARK), (256, LIGHT)], ids=["shortest", "long"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", INSIDE)
def test_real_runs_can_be_drawn_at_the_shortest_and_a_long_window(model, task, window, theme):
    config = replace(SMALL, model=model, task=task, window=window, steps=0, test_sequences=2)
    result, (inputs, _) = run(config), sequence(config, 1)
    if MODELS[model].inside == "hidden":
        names, table, low = ("unit", "step", "value"), hidden_table(result, inputs), -1
    else:
        names, table, low = ("target", "step", "weight"), attention_table(result, inputs), 0
    _, heatmap = over_sequence(inputs[0, :, 0].tolist(), table, names, theme).data
    assert np.array_equal(heatmap.z, table.pivot(index=names[0], columns="step", values=names[2]).to_numpy())
    assert (heatmap.zmin, heatmap.zmax) == (low, 1)


def test_the_scale_does_not_follow_the_values():
    table = pd.DataFrame({"unit": [1, 1], "step": [1, 2], "value": [0.01, 0.02]})
    _, heatmap = over_sequence([0.1, 0.2], table, ("unit", "step", "value"), LIGHT).data
    assert (heatmap.zmin, heatmap.zmax) == (-1, 1)
    middle = [colour for place, colour in LIGHT.hidden if place == 0.5]
    assert len(middle) == 1  # 0 has a colour of its own


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 11, 12, 13, 23, 32, 64, 100, 256, 1000, 1024])
def test_ticks_are_few_count_from_one_and_end_at_the_last(count):
    ticks = index_ticks(count)
    assert ticks[0] == 1 and ticks[-1] == count
    assert all(later > earlier for earlier, later in itertools.pairwise(ticks))
    assert len(ticks) <= 12
    assert min(count, 4) <= len(ticks)


# Colours


def luminance(colour):
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def looks(theme):
    """Every style of a theme by name, the spare ones too."""
    return {name: pair[theme is DARK] for name, pair in (*STYLES.items(), *enumerate(SPARE))}


def test_contrast_is_computed_as_wcag_does():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@both_themes
def test_text_in_a_model_s_colour_reads_well_on_the_page(theme):
    for name, look in looks(theme).items():
        assert contrast(look.text, theme.page) >= 4.5, name
    assert contrast(theme.ink, theme.page) >= 7
    assert contrast(theme.quiet, theme.page) >= 4.5


@both_themes
def test_the_page_is_the_one_that_streamlit_shows(theme):
    settings = tomllib.loads((Path(__file__).parent.parent / ".streamlit" / "config.toml").read_text())
    assert settings["theme"][theme.name]["backgroundColor"].lower() == theme.page.lower()


@both_themes
@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_a_style_of_its_own(model, theme):
    assert model in STYLES
    look = style(model, theme)
    assert look == STYLES[model][theme is DARK]
    others = [style(other, theme) for other in MODELS if other != model]
    assert (look.dash, look.marker) not in [(other.dash, other.marker) for other in others]  # never colour alone
    assert look.line not in [other.line for other in others]


def test_the_models_have_the_colours_of_the_design():
    light = {name: style(name, LIGHT).line for name in ("rnn", "attention", "gru", "lstm")}
    assert light == {"rnn": "#D55E00", "attention": "#0072B2", "gru": "#009E73", "lstm": "#CC79A7"}
    assert style("attention", DARK).line == "#56B4E9"


@both_themes
def test_models_without_a_style_get_spare_ones(theme):
    models = ["rnn", "new", "newer"]
    one, other = style("new", theme, models), style("newer", theme, models)
    assert one != other
    for look in (one, other):
        assert look.line not in [style(name, theme).line for name in MODELS]
        assert (look.dash, look.marker) not in [(style(name, theme)[2:]) for name in MODELS]
    assert style("new", theme)  # whether or not it knows of the others


@both_themes
def test_no_scale_repeats_a_model_s_colour(theme):
    models = {colour.lower() for look in looks(theme).values() for colour in (look.line, look.text)}
    assert not models & {colour.lower() for _, colour in theme.hidden}
    assert not models & {colour.lower() for _, colour in theme.share}


@both_themes
def test_the_scales_run_from_dark_to_light_or_back_so_that_they_need_no_hue(theme):
    share = [luminance(colour) for _, colour in theme.share]
    assert share in (sorted(share), sorted(share, reverse=True))
    places, colours = zip(*theme.hidden, strict=True)
    assert places == tuple(1 - place for place in reversed(places))  # 0 is in the middle
    away = [contrast(colour, colours[2]) for colour in colours]
    assert away[0] > away[1] > away[2] == 1 < away[3] < away[4]


@both_themes
def test_figures_use_their_theme(curve, theme):
    figure = curve(theme=theme)
    assert figure.layout.font.color == theme.ink
    for model in TRAINED:
        assert trace(figure, f"{MODELS[model].label}, median").line.color == style(model, theme).line
    table = pd.DataFrame({"unit": [1, 1], "step": [1, 2], "value": [0.01, 0.02]})
    _, heatmap = over_sequence([0.1, 0.2], table, ("unit", "step", "value"), theme).data
    assert [tuple(stop) for stop in heatmap.colorscale] == [tuple(stop) for stop in theme.hidden]
