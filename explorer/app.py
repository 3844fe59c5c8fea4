"""The Streamlit entry: navigation and the shared settings; nothing else."""

import sys

import streamlit as st

st.set_page_config(page_title="Why attention?", page_icon="🔎", layout="wide")
opening = st.empty()
first_page = "torch" not in sys.modules  # of the server: what a page needs takes seconds to load
if first_page:
    with opening.container():
        st.title("Why attention?", anchor=False)
        st.markdown(
            "A network reads a sequence of random numbers, one a step, and must report the first one at the very end. "
            "One that only guesses the mean of the n numbers misses it by (1/12)(1 − 1/n), as a mean squared error. "
            "How much better are an RNN and attention? Small networks are about to be trained to find out."
        )

from explorer.ui import picture, settings, work  # noqa: E402

st.html(picture.STYLES)
CURVE = "../pages/loss_vs_window.py"
page = st.navigation(
    [
        st.Page(CURVE, title="Loss vs window", default=True),
        st.Page("../pages/hidden_state.py", title="Hidden state", url_path=settings.HIDDEN),
        st.Page("../pages/attention.py", title="Attention", url_path=settings.ATTENTION),
        # The home page's address is the root; its own name leads there as well.
        st.Page(CURVE, title="Loss vs window", url_path=settings.CURVE, visibility="hidden"),
    ]
)
settings.note_ignored_link()
st.session_state.settings = settings.draw(page.url_path or settings.CURVE)
st.session_state.opening = opening if first_page else None
work.note_store()
page.run()
opening.empty()
