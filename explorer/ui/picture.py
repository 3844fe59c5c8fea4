"""How a picture stands on a page: its budget, its finding, the figure, a note, and its numbers as a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from explorer.config import RunConfig
from explorer.experiment import RunResult
from explorer.figures import LIGHT, THEMES, Figure, Theme
from explorer.jobs import Request
from explorer.models import MODELS
from explorer.tasks import TASKS

STYLES = Path(__file__).with_name("look.css")
PLOTLY = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}


def theme() -> Theme:
    """The theme that the visitor's browser shows."""
    return THEMES.get(st.context.theme.type or "", LIGHT)


def heading(finding: str, config: RunConfig, budget: list[str]) -> None:
    """The picture's finding as the page's heading, under the budget it was made with and above what was asked."""
    quiet(" · ".join(budget))
    st.title(finding, anchor=False)
    st.markdown(f"The network {TASKS[config.task].sentence}.")


def picture(figure: Figure, key: str, alt: str, note: str) -> None:
    """The figure with its text for those who cannot see it, and a note below."""
    st.plotly_chart(figure, theme=None, config=PLOTLY, key=key, alt=alt)
    quiet(note)


def quiet(text: str) -> None:
    """Small grey text that is still easy to read, which the stock caption is not on a tinted page."""
    st.markdown(f":small[:gray[{text}]]")


def numbers(table: pd.DataFrame, file_name: str, key: str, **formats: str) -> None:
    """The picture's numbers as a table, folded away, and as a CSV file. `formats`: how a column's numbers are shown."""
    # What is folded away is not sent: the table's code is the largest part of a page after the chart's.
    folded = st.expander("The numbers", key=key, on_change="rerun")
    if folded.open:
        columns = {
            name: st.column_config.NumberColumn(name.replace("_", " ").capitalize(), format=formats.get(name))
            if pd.api.types.is_numeric_dtype(table[name])
            else st.column_config.TextColumn(name.replace("_", " ").capitalize())
            for name in table
        }
        folded.dataframe(table, hide_index=True, column_config=columns)
        folded.download_button("Download CSV", table.to_csv(index=False), file_name, "text/csv")


def origin(request: Request, results: list[RunResult]) -> str:
    """Where the results that are shown came from: trained now, or stored; and the loss where there is only one."""
    if request.total == 1:
        if not results:
            return "Not trained yet."
        made = "Trained now" if request.trained else "From the store"
        return f"{made}: test loss {loss_text(results[0].test_loss)}."
    trained = min(request.trained, len(results))
    return f"{count(trained, 'run')} trained now, {len(results) - trained} from the store."


def count(number: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def loss_text(loss: float) -> str:
    """A loss with four decimals, or what to say where those would read 0.0000."""
    return "below 0.0001" if loss < 0.00005 else f"{loss:.4f}"


def run_budget(config: RunConfig) -> list[str]:
    """What one run was made with, for a line above its picture."""
    return [f"Window {config.window}", *training_budget(config, [config.model]), f"weight seed {config.init_seed}"]


def training_budget(config: RunConfig, models: list[str]) -> list[str]:
    """Steps and sequences of training, and the hidden units where one of the models has them."""
    kind = "fresh sequence" if config.fresh else "training sequence"
    budget = [count(config.steps, "training step"), count(config.sequences, kind) + (" a step" if config.fresh else "")]
    return budget + [count(config.hidden, "hidden unit")] * any("hidden" in MODELS[model].reads for model in models)
