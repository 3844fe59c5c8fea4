"""Every page as a visitor meets it, without a browser: each is run twice, since the second run is another one."""

from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from explorer.ui.settings import BY_KEY, PRESET_KEYS, PRESETS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path.name for path in (ROOT / "pages").glob("*.py"))
PAGE_KEYS = {"loss_vs_window.py": "curve", "hidden_state.py": "hidden", "attention.py": "attention"}
SMALL = {"windows": ["4", "8"], "seeds": "2", "steps": "10", "test_sequences": "64", "window": "8"}


@pytest.fixture(autouse=True)
def fresh_pool():
    """Each test has a pool and a store of its own."""
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The app with an empty store and a link that asks for little work."""
    monkeypatch.setenv("EXPLORER_STORE", str(tmp_path / "store"))
    app = AppTest.from_file(str(ROOT / "explorer" / "app.py"), default_timeout=60)
    for key, value in SMALL.items():
        app.query_params[key] = value
    return app


def open_page(app: AppTest, page: str) -> AppTest:
    app.run()
    app.switch_page(f"../pages/{page}")
    return until_done(app)


def until_done(app: AppTest) -> AppTest:
    """Runs the page until its results are all there, as a browser's polling would."""
    app.run()
    request = app.session_state["request"]
    assert request.wait(60)
    return app.run()


def charts(app: AppTest) -> list:
    return app.get("plotly_chart")


def texts(app: AppTest) -> str:
    kinds = (app.title, app.markdown, app.warning, app.info)
    return " ".join(element.value for elements in kinds for element in elements)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_one_chart_with_a_finding_and_its_numbers_and_does_so_again(app, page):
    open_page(app, page)
    for _ in range(2):
        app.session_state[f"{PAGE_KEYS[page]}_numbers"] = True
        app.run()
        assert not app.exception
        assert len(charts(app)) == 1
        assert charts(app)[0].proto.alt
        assert len(app.title) == 1
        assert app.title[0].value in charts(app)[0].proto.alt
        assert len(app.dataframe[0].value) > 0
        assert [button.label for button in app.get("download_button")] == ["Download CSV"]


def test_the_chart_counts_what_was_trained_and_what_was_stored(app):
    open_page(app, "loss_vs_window.py")
    assert "10 runs trained now, 0 from the store." in texts(app)  # rnn and attention 2 × 2 each, mean 2
    app.select_slider(key="seeds").set_value(3)
    until_done(app)
    assert "4 runs trained now, 10 from the store." in texts(app)


def test_more_hidden_units_train_the_rnn_again_but_not_attention(app):
    open_page(app, "loss_vs_window.py")
    app.select_slider(key="hidden").set_value(4)
    until_done(app)
    assert "4 runs trained now, 6 from the store." in texts(app)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_every_setting_on_the_page_at_one_press_and_says_which_one_it_is(app, preset):
    app.run()
    app.pills(key="preset").set_value(preset)
    app.run()
    app.session_state["request"].cancel()
    on_page = [key for key in PRESET_KEYS if key in app.session_state]
    assert {"task", "models", "windows", "hidden", "sequences", "steps", "seeds"} <= set(on_page)
    for key in on_page:
        wanted = PRESETS[preset].get(key, BY_KEY[key].default)
        assert list(app.session_state[key]) == list(wanted) if key == "windows" else app.session_state[key] == wanted
    assert app.session_state["preset"] == preset


def test_a_link_with_foreign_and_impossible_values_says_which_ones_it_left_out(app):
    app.query_params.update({"hidden": "5000", "colour": "red", "task": "Last value", "windows": ["3", "x"]})
    until_done(app)
    assert not app.exception
    warning = app.warning[0].value
    for part in ("Hidden units = 5000", "1 to 64", "“colour”", "Task = Last value", "Windows = 3, x"):
        assert part in warning
    assert app.session_state["hidden"] == 8


def test_no_model_gives_a_sentence_and_no_chart(app):
    app.run()
    app.session_state["models"] = []
    app.run()
    assert not app.exception
    assert "Choose at least one model" in texts(app)
    assert not charts(app)


def test_a_store_that_cannot_be_written_is_said_once_and_the_chart_is_there(app, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EXPLORER_STORE", str(tmp_path / "file" / "store"))
    open_page(app, "loss_vs_window.py")
    assert len([w for w in app.warning if "EXPLORER_STORE" in w.value]) == 1
    assert len(charts(app)) == 1
