"""The chart of the project: test loss against window length."""

import streamlit as st

from explorer import figures
from explorer.experiment import grid
from explorer.findings import curve_finding
from explorer.measures import SOLVED, guessing_the_mean, levels_table, runs_table, summary_table
from explorer.models import MODELS
from explorer.ui import work
from explorer.ui.picture import count, heading, numbers, origin, picture, theme, training_budget

settings = st.session_state.settings
base, windows, models = settings.base, settings.curve_windows, settings.models


def draw(results, request):
    runs = runs_table(results)
    summary = summary_table(runs)
    levels = levels_table(base, windows)
    dashed = levels[levels["key"].isin(models) | ~levels["key"].isin(list(MODELS))]
    finding = curve_finding(summary, guessing_the_mean(summary, levels))
    if len(results) < request.total:  # a claim about windows or seeds would be one about those that happen to be in
        finding = f"{len(results)} of {count(request.total, 'network')} are trained so far"
    heading(finding, base, [*training_budget(base, models), count(settings.seeds, "weight seed")])
    log_loss = settings.loss_axis == "Log"
    picture(
        figures.loss_curve(runs, summary, dashed, theme(), log_loss, windows),
        key="curve",
        alt=f"{finding}. Test loss against window length for {', '.join(MODELS[name].label for name in models)}.",
        note="A dot is one trained network, a line the median over its seeds, of which the title speaks, dashed a "
        "closed form. *Solved* counts "
        f"the seeds with a loss below {SOLVED}. Measured on {base.test_sequences} unseen sequences. "
        + origin(request, results),
    )
    forms = levels.pivot(index="window", columns="key", values="value").add_prefix("closed_form_")
    loss = "%.4f"
    numbers(
        summary.drop(columns="label").merge(forms, on="window"),
        "loss_vs_window.csv",
        key="curve_numbers",
        **dict.fromkeys(["median", "lowest", "highest", *forms], loss),
        solved="percent",
        seconds="%.2f s",
    )


if models:
    work.follow(grid(base, models, windows, range(1, settings.seeds + 1), [base.data_seed]), draw)
else:
    st.title("No model is chosen", anchor=False)
    st.info("Choose at least one model in the settings to see its loss.")
