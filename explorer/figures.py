"""Tidy tables → plotly figures. The only file that imports plotly; it takes tables, never models.

Colours are those of Okabe and Ito, readable with any colour vision, and never the only sign: each model has its own
dash and marker too. A figure's finding is the heading above it on the page, so figures have no title of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

Figure = go.Figure
FONT = '"Source Sans", "Source Sans Pro", "Segoe UI", sans-serif'
FLOOR = 1e-7  # a log axis ends here; smaller losses stand on its edge
LABEL_PIXELS = 17  # between the middles of two labels


@dataclass(frozen=True)
class Theme:
    """The colours that are not a model's: page, text, quieter text, grid; and the two scales."""

    name: str
    page: str
    ink: str
    quiet: str
    grid: str
    hidden: tuple[tuple[float, str], ...]  # diverging, repeats no model's colour
    share: tuple[tuple[float, str], ...]  # sequential


LIGHT = Theme(
    name="light",
    page="#FDFCF9",
    ink="#20242C",
    quiet="#5A606B",
    grid="#E4E1DA",
    hidden=((0, "#6B3F00"), (0.25, "#C79A4B"), (0.5, "#FBF7EF"), (0.75, "#9A8CC9"), (1, "#3B2A75")),
    share=((0, "#F1F4F8"), (0.25, "#B5D3E8"), (0.6, "#3F94C6"), (1, "#004A75")),
)
DARK = Theme(
    name="dark",
    page="#15181E",
    ink="#ECEAE4",
    quiet="#A9AEB8",
    grid="#2E333D",
    hidden=((0, "#F2C879"), (0.25, "#96692A"), (0.5, "#22252C"), (0.75, "#6A5BB0"), (1, "#C9BFF5")),
    share=((0, "#1D222B"), (0.25, "#1F4E70"), (0.6, "#3A8CC0"), (1, "#B9E1FA")),
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


class Style(NamedTuple):
    """How a model is drawn. Text in the model's colour takes `text`, which reads well on the page."""

    line: str
    text: str
    dash: str
    marker: str


# Light and dark. A model that is not listed takes the next spare style.
STYLES = {
    "rnn": (Style("#D55E00", "#B34700", "solid", "circle"), Style("#E8742A", "#F08A48", "solid", "circle")),
    "gru": (Style("#009E73", "#00734F", "dashdot", "square"), Style("#1DB98C", "#2CC79A", "dashdot", "square")),
    "lstm": (
        Style("#CC79A7", "#A04578", "longdash", "triangle-up"),
        Style("#D98BB7", "#E29BC3", "longdash", "triangle-up"),
    ),
    "attention": (Style("#0072B2", "#00629A", "solid", "diamond"), Style("#56B4E9", "#6CC0F0", "solid", "diamond")),
    "mean": (Style("#6B7280", "#555B66", "dash", "circle-open"), Style("#9CA3AF", "#A9AEB8", "dash", "circle-open")),
    "constant": (
        Style("#8A8F99", "#555B66", "dot", "square-open"),
        Style("#8A8F99", "#A9AEB8", "dot", "square-open"),
    ),
}
SPARE = (
    (Style("#E69F00", "#8A5F00", "dashdot", "cross"), Style("#E69F00", "#EDB23A", "dashdot", "cross")),
    (Style("#56B4E9", "#20719F", "longdash", "x"), Style("#0072B2", "#5AA9DA", "longdash", "x")),
)


def style(model: str, theme: Theme, models: Sequence[str] = ()) -> Style:
    """The style of a model; of one without a style of its own, by its place among the unknown ones of `models`."""
    if model in STYLES:
        pair = STYLES[model]
    else:
        unknown = [name for name in models if name not in STYLES]
        pair = SPARE[unknown.index(model) % len(SPARE) if model in unknown else 0]
    return pair[theme.name == "dark"]


def loss_curve(
    runs: pd.DataFrame,
    summary: pd.DataFrame,
    levels: pd.DataFrame,
    theme: Theme,
    log_loss: bool = False,
    windows: Sequence[int] = (),
) -> Figure:
    """Test loss against window length, and below it how many seeds solved the task.

    Args:
        runs: `measures.runs_table`: a dot each.
        summary: `measures.summary_table`: lines through the medians.
        levels: `measures.levels_table`, of the limits and baselines to draw dashed.
        log_loss: a logarithmic loss axis.
        windows: that the window axis has room for, besides those in the tables.
    """
    trained = [model for model in dict.fromkeys(summary["model"]) if model not in set(levels["key"])]
    baselines = [model for model in dict.fromkeys(summary["model"]) if model in set(levels["key"])]
    windows = sorted({*summary["window"], *levels["window"], *windows}) or [4, 128]
    strip = 24 * max(len(trained), 1) + 6
    height = 440 + strip
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[height - strip - 32, strip], vertical_spacing=0.13
    )
    ends: list[tuple[float, str, str]] = []
    show = (lambda loss: np.maximum(loss, FLOOR)) if log_loss else (lambda loss: loss)

    for key, rows in levels.groupby("key", sort=False):
        look = style(str(key), theme) if key in STYLES else Style(theme.ink, theme.ink, "dash", "circle")
        figure.add_scatter(
            x=rows["window"],
            y=show(rows["value"]),
            mode="lines",
            line={"color": look.line, "width": 1.6, "dash": look.dash},
            name=rows["label"].iloc[0],
            customdata=rows["formula"],
            hovertemplate="%{customdata} = %{y:.4f}<extra>closed form, window %{x}</extra>",
        )
        ends.append((float(show(rows["value"]).iloc[-1]), _short(rows["label"].iloc[0], key), look.text))

    for place, model in enumerate([*baselines, *trained]):
        look = style(model, theme, trained)
        seeds, medians = runs[runs["model"] == model], summary[summary["model"] == model]
        seeds = seeds[np.isfinite(seeds["test_loss"])]
        # Where many models' dots would lie upon each other they stand side by side.
        aside = place - len(baselines) - (len(trained) - 1) / 2 if model in trained and len(trained) > 2 else 0
        figure.add_scatter(
            x=seeds["window"] * 2 ** (0.05 * aside),
            y=show(seeds["test_loss"]),
            mode="markers",
            marker={
                "color": look.line,
                "symbol": look.marker,
                "size": 7,
                "opacity": 0.42 if model in trained else 1,
                "line": {"width": 1.5 if model in baselines else 0, "color": look.line},
            },
            name=medians["label"].iloc[0],
            customdata=np.stack([seeds["window"], seeds["init_seed"], seeds["data_seed"], seeds["test_loss"]], axis=-1),
            hovertemplate="loss %{customdata[3]:.4g}<br>window %{customdata[0]}, weight seed %{customdata[1]}, "
            "data seed %{customdata[2]}<extra>" + medians["label"].iloc[0] + "</extra>",
        )
        if model in baselines:
            continue
        figure.add_scatter(
            x=medians["window"],
            y=show(medians["median"]),
            mode="lines+markers",
            line={"color": look.line, "width": 2.6, "dash": look.dash},
            marker={"color": look.line, "symbol": look.marker, "size": 8},
            name=f"{medians['label'].iloc[0]}, median",
            customdata=np.stack([medians["median"], medians["runs"]], axis=-1),
            hovertemplate="median %{customdata[0]:.4g} of %{customdata[1]}<extra>window %{x}</extra>",
        )
        last = medians["median"].dropna()
        if len(last):
            ends.append((float(show(last).iloc[-1]), medians["label"].iloc[0], look.text))

    left, right = math.log2(windows[0]), math.log2(windows[-1])
    span = max(right - left, 1)
    low, high = _loss_range(runs, summary, levels, log_loss)
    plot_pixels = (height - strip - 32) * 0.86
    ticks = {"tickvals": windows, "ticktext": [str(window) for window in windows]}
    figure.update_xaxes(
        type="log",
        range=[(left - 0.11 * span) * math.log10(2), (right + 0.21 * span) * math.log10(2)],
        **ticks,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        row=1,
        title_text="Test loss (mean squared error)",
        title_standoff=8,
        type="log" if log_loss else "linear",
        range=[low, high],
        **({"dtick": 1, "exponentformat": "power"} if log_loss else {"nticks": 7, "tickformat": ".2f"}),
        gridcolor=theme.grid,
        zeroline=False,
    )
    figure.update_xaxes(row=1, showticklabels=True, title_text="Window (steps read, n)", title_standoff=6)
    figure.update_xaxes(row=2, showticklabels=False, showline=False, ticks="")
    for y, text, colour in _spread(ends, low, high, plot_pixels, log_loss):
        figure.add_annotation(
            x=right * math.log10(2), y=y, text=f"<b>{text}</b>", font={"color": colour, "size": 14}, xshift=16,
            xanchor="left", yanchor="middle", showarrow=False, row=1, col=1,
        )  # fmt: skip
    _solved_strip(figure, summary, trained, theme)
    return _finished(figure, theme, height, left=64, right=40, bottom=14)


def _short(label: str, key: str) -> str:
    return {"mean": "Mean", "constant": "Constant"}.get(key, label.split(" of ")[0])


def _loss_range(runs, summary, levels, log_loss) -> tuple[float, float]:
    losses = pd.concat([runs["test_loss"], summary["median"], levels["value"]])
    losses = losses[np.isfinite(losses)]
    top = max(losses.max() if len(losses) else 0.1, 0.1)
    # One diverging run may not flatten the picture: what lies far above the rest is left to the table.
    top = min(top, 4 * max(losses.quantile(0.9) if len(losses) else 0.1, 0.1))
    if not log_loss:
        return -0.04 * top, 1.06 * top
    bottom = max(losses.min() if len(losses) else FLOOR, FLOOR)
    return math.log10(bottom) - 0.3, math.log10(top) + 0.2


def _spread(ends, low, high, pixels, log_loss) -> list[tuple[float, str, str]]:
    """Moves labels apart so that none covers another, and back into the plot."""
    if not ends:
        return []
    scale = pixels / (high - low)
    ends = sorted(((math.log10(y) if log_loss else y), text, colour) for y, text, colour in ends)
    places = [min(max((y - low) * scale, 8), pixels - 8) for y, _, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + LABEL_PIXELS)
    overflow = max(0.0, places[-1] - (pixels - 8))
    for i in range(len(places) - 1, -1, -1):
        limit = places[i] - overflow if i == len(places) - 1 else places[i + 1] - LABEL_PIXELS
        places[i] = min(places[i], limit)
    return [(place / scale + low, text, colour) for place, (_, text, colour) in zip(places, ends, strict=True)]


def _solved_strip(figure: Figure, summary: pd.DataFrame, trained: list[str], theme: Theme) -> None:
    for place, model in enumerate(trained):
        rows, look = summary[summary["model"] == model], style(model, theme, trained)
        counts = [f"{round(share * runs)}/{runs}" for share, runs in zip(rows["solved"], rows["runs"], strict=True)]
        figure.add_scatter(
            x=rows["window"],
            y=[place] * len(rows),
            mode="text",
            text=counts,
            textfont={"color": look.text, "size": 13},
            cliponaxis=False,
            name=f"{rows['label'].iloc[0]}, solved",
            hovertemplate="%{text} seeds below 0.01<extra>" + rows["label"].iloc[0] + "</extra>",
            row=2,
            col=1,
        )
    figure.update_yaxes(
        row=2,
        range=[len(trained) - 0.4, -0.6],
        tickvals=[(len(trained) - 1) / 2],
        ticktext=["solved"],
        ticks="",
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )


def over_sequence(
    sequence: Sequence[float], rows: pd.DataFrame, names: tuple[str, str, str], theme: Theme, mark: str | None = None
) -> Figure:
    """A heatmap over the sequence, with the sequence itself as bars above it on the same axis.

    Args:
        sequence: the values read, (n,).
        rows: a long table whose columns `names` are the vertical index, the step and the value.
        names: the vertical index is "unit" (hidden state, scale −1 to 1) or "target" (weights, scale 0 to 1).
        mark: where the first value is the one asked for, the model in whose colour it is drawn.
    """
    index, step, value = names
    grid = rows.pivot(index=index, columns=step, values=value)
    hidden = index == "unit"
    count, steps = grid.shape
    # A row is tall enough to be seen from the back, and the whole fits on one screen.
    body = min(max(150, 44 * count), 430)
    height = 110 + body + 70
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[100, body], vertical_spacing=30 / height)
    colours = [style(mark, theme).line if mark and step == 0 else theme.quiet for step in range(steps)]
    figure.add_bar(
        x=list(grid.columns),
        y=list(sequence),
        marker={"color": colours, "line": {"width": 0}},
        hovertemplate="x = %{y:.3f}<extra>step %{x}</extra>",
        name="Input",
    )
    figure.add_heatmap(
        x=list(grid.columns),
        y=list(grid.index),
        z=grid.to_numpy(),
        zmin=-1 if hidden else 0,
        zmax=1,
        colorscale=[list(stop) for stop in (theme.hidden if hidden else theme.share)],
        xgap=1 if steps <= 64 else 0,
        ygap=1 if count <= 64 else 0,
        colorbar={
            "thickness": 10, "outlinewidth": 0, "len": body / (height - 90), "y": 0, "yanchor": "bottom", "x": 1.01,
            "tickvals": [-1, 0, 1] if hidden else [0, 0.5, 1], "ticklabelposition": "outside",
        },
        hovertemplate=f"{'h' if hidden else 'weight'} = %{{z:.3f}}<extra>{index} %{{y}}, step %{{x}}</extra>",
        name="Hidden state" if hidden else "Attention weights",
        row=2,
        col=1,
    )  # fmt: skip
    figure.update_yaxes(row=1, range=[0, 1], tickvals=[0, 1], title_text="Input x", showgrid=False, fixedrange=True)
    figure.update_yaxes(
        row=2,
        autorange="reversed",
        title_text="Hidden unit" if hidden else ("Query" if count > 1 else "Weight"),
        tickvals=index_ticks(count) if count > 1 else [],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(showgrid=False, zeroline=False, range=[0.5, steps + 0.5])
    figure.update_xaxes(row=1, showticklabels=False)
    figure.update_xaxes(row=2, tickvals=index_ticks(steps), title_text="Step t", title_standoff=6)
    return _finished(figure, theme, height, left=64, right=44, bottom=52)


def index_ticks(count: int) -> list[int]:
    """Few ticks that count from 1 and end at `count`: 1, 8, 16, 24, 32."""
    if count <= 10:
        return list(range(1, count + 1))
    distance = 2 ** max(0, round(math.log2(count / 5)))
    ticks = [1, *range(distance, count + 1, distance)]
    return [tick for tick in ticks if count - tick >= distance / 2 or tick == count] + [count] * (ticks[-1] != count)


def _finished(figure: Figure, theme: Theme, height: int, left: int, right: int, bottom: int) -> Figure:
    figure.update_layout(
        height=height,
        margin={"l": left, "r": right, "t": 12, "b": bottom},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 14, "color": theme.ink},
        showlegend=False,
        hoverlabel={"bgcolor": theme.page, "bordercolor": theme.grid, "font": {"family": FONT, "color": theme.ink}},
        bargap=0.12,
        dragmode="zoom",
        template="none",
    )
    figure.update_xaxes(tickcolor=theme.grid, linecolor=theme.quiet, title_font_size=14, tickfont_size=13)
    figure.update_yaxes(tickcolor=theme.grid, title_font_size=14, tickfont_size=13)
    return figure
