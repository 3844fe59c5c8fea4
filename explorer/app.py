"""The Streamlit entry: navigation and the shared settings; nothing else."""

import streamlit as st

from explorer.ui import picture, settings, work

st.set_page_config(page_title="Why attention?", page_icon="🔎", layout="wide")
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
work.note_store()
page.run()
