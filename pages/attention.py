"""The attention weights of one run over one sequence."""

from dataclasses import replace

import streamlit as st

from explorer import figures
from explorer.findings import attention_finding
from explorer.measures import attention_table, sequence, untrained
from explorer.ui import work
from explorer.ui.picture import heading, numbers, origin, picture, run_budget, theme

settings = st.session_state.settings
config = replace(settings.base, model="attention", window=settings.window, init_seed=settings.seed)


def draw(results, request):
    result = results[0] if results else untrained(config)
    inputs, target = sequence(config, settings.sequence)
    table = attention_table(result, inputs)
    finding = attention_finding(table, trained=bool(results))
    heading(finding, config, run_budget(config))
    mark = config.model if len(target[0]) == 1 else None
    picture(
        figures.over_sequence(inputs[0, :, 0].tolist(), table, ("target", "step", "weight"), theme(), mark),
        key="attention",
        alt=f"{finding}. Heatmap of the attention weights over {config.window} steps, below the sequence read.",
        note="A weight is a share: how much of that step's value is taken. The shares of a row add up to 1, and the "
        "answer is the sum of the values so weighted. " + origin(request, results),
    )
    numbers(table, "attention.csv", key="attention_numbers", weight="%.4f")


work.follow([config], draw)
