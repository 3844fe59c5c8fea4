"""The shared settings in the sidebar: one table of controls, from which the widgets, the link's check, the presets and
the configs are derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from explorer import engine
from explorer.config import RunConfig
from explorer.models import MODELS
from explorer.tasks import TASKS

CURVE, HIDDEN, ATTENTION = "Loss_vs_window", "Hidden_state", "Attention"
ALL = (CURVE, HIDDEN, ATTENTION)
FRESH = "fresh"
POWERS = tuple(2**k for k in range(2, 9))
OUT_OF_SIGHT = "settings_out_of_sight"  # see look.css
RECURRENT = tuple(name for name, model in MODELS.items() if model.inside == "hidden")


@dataclass(frozen=True)
class Control:
    """One setting: how it is drawn, where, and what it may be.

    key: its name in the link. options: the values it may take, for Streamlit leaves out of a link what is none of a
    list of options, while a number it may bend, or stumble over. reads: the model's field that it stands for; where no
    model shown reads that, it is not drawn.
    """

    key: str
    label: str
    help: str
    kind: str  # choice (of one), many, stops (on a slider), range (two stops)
    options: Sequence
    default: Any
    pages: tuple[str, ...] = ALL
    reads: str = ""
    more: bool = False
    show: Callable[[Any], str] = str

    def draw(self) -> Any:
        """Draws the widget, bound to the link, and returns its value."""
        shared = {"key": self.key, "help": self.help, "format_func": self.show, "bind": "query-params"}
        if self.kind == "choice":
            return st.selectbox(self.label, self.options, index=self.options.index(self.default), **shared)
        if self.kind == "many":
            chosen = st.pills(self.label, self.options, default=self.default, selection_mode="multi", **shared)
            return [option for option in self.options if option in chosen]
        return st.select_slider(self.label, self.options, value=self.default, **shared)

    def accepts(self, texts: Sequence[str]) -> bool:
        """Whether the link's texts for this setting are values it can take."""
        allowed = {self.show(option) for option in self.options}
        if self.kind == "many" and list(texts) == [""]:
            return True  # none of them
        if not all(text in allowed for text in texts):
            return False
        if self.kind == "range":
            places = [[self.show(option) for option in self.options].index(text) for text in texts]
            return len(texts) == 2 and places == sorted(places)
        return self.kind == "many" or len(texts) == 1

    def allowed(self) -> str:
        """What it takes, for a sentence."""
        if isinstance(self.options, range):
            return f"{self.options[0]} to {self.options[-1]}"
        options = ", ".join(self.show(option) for option in self.options)
        return f"two of {options}, the lower first" if self.kind == "range" else options


def _task(name: str) -> str:
    return TASKS[name].label


def _model(name: str) -> str:
    return MODELS[name].label


CONTROLS = (
    Control(
        "task", "Task", "What the network must report at the end: only the first value, or every value it read.",
        "choice", tuple(TASKS), "first", show=_task,
    ),
    Control(
        "models", "Models",
        "Which models the chart compares. Mean and Constant learn nothing: they are the mark to beat.",
        "many", tuple(MODELS), ["rnn", "attention", "mean"], pages=(CURVE,), show=_model,
    ),
    Control(
        "cell", "Recurrent model", "The model whose hidden state is shown.",
        "choice", RECURRENT, "rnn", pages=(HIDDEN,), show=_model,
    ),
    Control(
        "windows", "Windows", "How many steps a sequence has, from the shortest to the longest, in powers of two. "
        "Longer windows make the first value harder to keep.",
        "range", POWERS, (4, 128), pages=(CURVE,),
    ),
    Control(
        "window", "Window",
        "How many steps the sequence has. A longer window means more updates after the first value.",
        "stops", POWERS, 32, pages=(HIDDEN, ATTENTION),
    ),
    Control(
        "hidden", "Hidden units", "Numbers in the one vector that a recurrent model carries from step to step. "
        "More units hold more, and cost more.",
        "stops", range(1, 65), 8, reads="hidden",
    ),
    Control(
        "sequences", "Training sequences", "How many sequences the models learn from, the same ones at every step; "
        "at the right end new ones are drawn for every step, so that nothing can be memorised.",
        "stops", (8, 16, 32, 64, 128, 256, 512, 1024, FRESH), 32, reads="sequences",
    ),
    Control(
        "steps", "Training steps", "How often the weights are adjusted. More steps give training more time.",
        "stops", (0, 10, 20, 40, 60, 100, 200, 300, 500, 800, 1200, 2000, 3000, 5000), 60, reads="steps",
    ),
    Control(
        "seeds", "Weight seeds", "How many times each model is trained, from other random starting weights. "
        "Every seed is a dot; more seeds show how much is luck.",
        "stops", range(1, 21), 10, pages=(CURVE,), reads="init_seed",
    ),
    Control(
        "seed", "Weight seed", "Which random starting weights the run shown began with.",
        "stops", range(1, 21), 1, pages=(HIDDEN, ATTENTION), reads="init_seed",
    ),
    Control(
        "sequence", "Sequence shown", "Which random sequence is read for the picture; no run was trained on it.",
        "stops", range(1, 21), 1, pages=(HIDDEN, ATTENTION),
    ),
    Control(
        "learning_rate", "Learning rate", "How far each training step moves the weights. Too high overshoots, too low "
        "goes nowhere.",
        "stops", (0.0003, 0.001, 0.003, 0.01, 0.02, 0.03, 0.1), 0.01, reads="learning_rate", more=True,
        show=lambda rate: f"{rate:g}",
    ),
    Control(
        "batch", "Fresh sequences a step", "How many new sequences each training step draws.",
        "stops", (8, 16, 32, 64, 128, 256, 512), 32, reads="sequences", more=True,
    ),
    Control(
        "data_seed", "Data seed", "Which random sequences are drawn for training. The lesson uses 10.",
        "stops", range(101), 10, reads="data_seed", more=True,
    ),
    Control(
        "test_sequences", "Test sequences", "How many unseen sequences the loss is measured on. The lesson uses 64; "
        "more make the measurement finer.",
        "stops", (64, 256, 1024, 4096, 16384), 4096, more=True,
    ),
    Control(
        "loss_axis", "Loss axis", "Log shows differences between small losses; Linear shows how far each model is from "
        "the rest.",
        "choice", ("Linear", "Log"), "Linear", pages=(CURVE,), more=True,
    ),
)  # fmt: skip
BY_KEY = {control.key: control for control in CONTROLS}

PRESETS: dict[str, dict[str, Any]] = {
    "The lesson": {},
    "Fresh data": {"sequences": FRESH, "steps": 300},
    "Long windows": {"windows": (16, 256), "window": 256, "seeds": 5},
    "The capacity limit": {
        "task": "any", "models": ["rnn", "attention", "mean"], "windows": (4, 32), "window": 16, "sequences": FRESH,
        "batch": 64, "steps": 800, "learning_rate": 0.02, "seeds": 3,
    },
}  # fmt: skip
# The run looked at and the sequence shown belong to the visitor, not to a preset.
PRESET_KEYS = tuple(c.key for c in CONTROLS if c.key not in ("cell", "seed", "sequence", "loss_axis"))


@dataclass(frozen=True)
class Settings:
    """What the sidebar says, ready to make configs of."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, key: str) -> Any:
        return self.values[key]

    @property
    def base(self) -> RunConfig:
        """The config that all runs on the page share; model, window and weight seed are put in by the page."""
        fresh = self.sequences == FRESH
        return RunConfig(
            task=self.task,
            hidden=self.hidden,
            sequences=self.batch if fresh else self.sequences,
            fresh=fresh,
            steps=self.steps,
            learning_rate=self.learning_rate,
            data_seed=self.data_seed,
            test_sequences=self.test_sequences,
        )

    @property
    def curve_windows(self) -> list[int]:
        """The windows of the curve, powers of two."""
        low, high = self.windows
        return [window for window in POWERS if low <= window <= high]


def ignored_by_link(link: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each part of a link that cannot be followed. `link`: each key's texts."""
    sentences = []
    for key, texts in link.items():
        control = BY_KEY.get(key)
        if control is None:
            sentences.append(f"“{key}” is no setting here.")
        elif not control.accepts(texts):
            said = ", ".join(text for text in texts if text) or "nothing"
            sentences.append(f"{control.label} = {said}: it can be {control.allowed()}.")
    return sentences


def note_ignored_link() -> None:
    """Says on a visit's first page, and on those after it, which parts of its link could not be followed."""
    if "ignored" not in st.session_state:
        link = {key: st.query_params.get_all(key) for key in st.query_params}
        st.session_state.ignored = [sentence[:200] for sentence in ignored_by_link(link)]
        refused = [key for key, texts in link.items() if key not in BY_KEY or not BY_KEY[key].accepts(texts)]
        if refused:  # of a range or a list, Streamlit would follow the half that it can
            for key in refused:
                del st.query_params[key]
            st.rerun()
    if st.session_state.ignored:
        st.warning("A part of the link was left out. " + " ".join(st.session_state.ignored))


def draw(page: str) -> Settings:
    """Draws the page's settings in the sidebar and returns all values."""
    with st.sidebar:
        place = st.container()
        values = {control.key: st.session_state.get(control.key, control.default) for control in CONTROLS}
        models = {CURVE: values["models"], HIDDEN: [values["cell"]], ATTENTION: ["attention"]}.get(page, [])
        read = {name for model in models for name in MODELS[model].reads}
        shown = [c for c in CONTROLS if page in c.pages and (not c.reads or c.reads in read)]
        for control in shown:
            if not control.more:
                values[control.key] = control.draw()
        with st.expander("More"):
            for control in shown:
                if control.more and not (control.key == "batch" and values["sequences"] != FRESH):
                    values[control.key] = control.draw()
            if (status := engine.status()) != "ready":
                st.markdown(f":small[:gray[Fast training is {status}. Slower ways serve meanwhile.]]")
        with st.container(key=OUT_OF_SIGHT):
            # Settings of other pages are drawn unseen: only what is drawn stays in the link, and survives a reload.
            for control in CONTROLS:
                if control not in shown or (control.key == "batch" and values["sequences"] != FRESH):
                    values[control.key] = control.draw()
        with place:
            _draw_presets(values)
    return Settings(values)


def _draw_presets(values: Mapping[str, Any]) -> None:
    def apply() -> None:
        chosen = PRESETS.get(st.session_state.preset, {})
        for key in PRESET_KEYS:
            st.session_state[key] = chosen.get(key, BY_KEY[key].default)

    st.session_state.preset = next(
        (
            name
            for name, chosen in PRESETS.items()
            if all(values[key] == chosen.get(key, BY_KEY[key].default) for key in PRESET_KEYS)
        ),
        None,
    )
    st.pills(
        "Preset",
        list(PRESETS),
        key="preset",
        on_change=apply,
        help="Sets every setting to a starting point that shows one thing well.",
    )
