"""Pages ask for results here: one pool for the server, one request a page and visitor, pictures while it works."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import streamlit as st

from explorer import engine
from explorer.config import RunConfig
from explorer.experiment import RunResult
from explorer.jobs import Pool, Request
from explorer.store import open_store

AT_ONCE_SECONDS = 1.0  # work that is done by then shows no progress
OPENING_SECONDS = 4.0  # for which a server's first page keeps its opening words rather than show half a picture
POLL_SECONDS = 0.5
REDRAW_SECONDS = 1.5  # between two pictures of unfinished work


@st.cache_resource(show_spinner=False)
def pool() -> Pool:
    """The server's pool and store."""
    if engine.compiled():
        engine.prepare()
    made = Pool(open_store())
    # Streamlit collects garbage after every run of a page; what the imports left need not be looked at each time.
    gc.collect()
    gc.freeze()
    return made


Draw = Callable[[list[RunResult], Request], None]


def follow(configs: Sequence[RunConfig], draw: Draw) -> None:
    """Shows `draw(results, request)` with what is there, and progress and a Stop until all is there.

    A new set of configs replaces the visitor's earlier one, whose trainings end unless somebody else waits for them.
    """
    try:
        request = _request(tuple(configs))
    except ValueError as error:
        st.error(f"This cannot be run: {error}.")
        return
    opening = st.session_state.opening
    done = request.wait(OPENING_SECONDS if opening else AT_ONCE_SECONDS)
    engine.prepare()  # where that means compiling, the first picture's work went first
    if opening:
        opening.empty()
    if done:
        _end(request, draw)
        return

    @st.fragment(run_every=POLL_SECONDS)
    def live() -> None:
        if request.finished or request is not st.session_state.request:
            st.rerun()
        _progress(request)
        # Between two redraws the same results are drawn again, which leaves the picture in the browser as it is.
        drawn, results = st.session_state.get("drawn", (0.0, []))
        if time.monotonic() - drawn > REDRAW_SECONDS:
            results = request.results
            st.session_state.drawn = time.monotonic(), results
        draw(results, request)

    st.session_state.drawn = time.monotonic(), request.results
    live()


def _request(configs: tuple[RunConfig, ...]) -> Request:
    kept: Request | None = st.session_state.get("request")
    if kept is not None:
        if st.session_state.request_configs == configs and not kept.lost and (kept.alive or kept.finished):
            return kept
        kept.cancel()
    st.session_state.request_configs = configs
    st.session_state.request = pool().submit(configs)
    return st.session_state.request


def _progress(request: Request) -> None:
    left = request.seconds_left
    text = f"{request.ended} of {request.total} runs" + ("" if left is None else f", about {duration(left)} left")
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    bar.progress(min(request.fraction, 1.0), text=text)
    if stop.button("Stop", width="stretch", help="Ends the training and keeps what is finished."):
        request.cancel()
        st.rerun()


def _end(request: Request, draw: Draw) -> None:
    if request.stopped:
        text, again = st.columns([5, 1], vertical_alignment="center")
        text.info(f"Stopped with {request.ended} of {request.total} runs finished.")
        if again.button("Continue", width="stretch"):
            del st.session_state.request
            st.rerun()
    for error in request.errors:
        st.error(error)
    draw(request.results, request)


def duration(seconds: float) -> str:
    """ "3 s", "2 min": how people say it."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def note_store() -> None:
    """Says so where results cannot be kept."""
    if warning := pool().store.warning:
        st.warning(warning)
