"""The hidden state of one run over one sequence."""

from dataclasses import replace

import streamlit as st

from explorer import figures
from explorer.findings import hidden_finding
from explorer.measures import answer, hidden_table, sequence, untrained
from explorer.models import MODELS
from explorer.ui import work
from explorer.ui.picture import heading, numbers, origin, picture, run_budget, theme

settings = st.session_state.settings
config = replace(settings.base, model=settings.cell, window=settings.window, init_seed=settings.seed)
label = MODELS[config.model].label


def draw(results, request):
    result = results[0] if results else untrained(config)
    inputs, target = sequence(config, settings.sequence)
    table = hidden_table(result, inputs)
    finding = hidden_finding(label, answer(result, inputs), target[0].numpy(), trained=bool(results))
    heading(finding, config, run_budget(config))
    mark = config.model if len(target[0]) == 1 else None
    picture(
        figures.over_sequence(inputs[0, :, 0].tolist(), table, ("unit", "step", "value"), theme(), mark),
        key="hidden_state",
        alt=f"{finding}. Heatmap of {config.hidden} hidden units over {config.window} steps, below the sequence read.",
        note=f"Each column is the hidden state after that step: {config.hidden} numbers between −1 and 1. "
        "The answer is read from the last column alone. " + origin(request, results),
    )
    numbers(table, "hidden_state.csv", key="hidden_numbers", value="%.4f")


work.follow([config], draw)
