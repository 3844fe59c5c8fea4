"""The attention weights of one run over one sequence."""

from dataclasses import replace

import streamlit as st

from explorer import figures
from explorer.findings import attention_finding
from explorer.measures import attention_table, sequence
from explorer.ui import work
from explorer.ui.picture import heading, loss_text, numbers, origin, picture, run_budget, theme

settings = st.session_state.settings
config = replace(settings.base, model="attention", window=settings.window, init_seed=settings.seed)


def draw(results, request):
    if not results:
        heading("Attention is being trained", config, run_budget(config))
        return
    result = results[0]
    inputs, _ = sequence(config, settings.sequence)
    table = attention_table(result, inputs)
    finding = attention_finding(table)
    heading(finding, config, run_budget(config))
    picture(
        figures.over_sequence(inputs[0, :, 0].tolist(), table, ("target", "step", "weight"), theme()),
        key="attention",
        alt=f"{finding}. Heatmap of the attention weights over {config.window} steps, below the sequence read.",
        note="A weight is a share: how much of that step's value is taken. The shares of a row add up to 1, and the "
        f"answer is the sum of the values so weighted. Test loss of this run: {loss_text(result.test_loss)}. "
        + origin(request),
    )
    numbers(table, "attention.csv", key="attention_numbers", weight="%.4f")


work.follow([config], draw)
