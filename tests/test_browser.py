"""The running app in a real browser, as a visitor sees it.

Needs `pip install -e .[browser]` and Chromium; without them these tests are skipped, but never where CI is set.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
SMALL = "windows=4&windows=16&seeds=2&steps=20&test_sequences=256"
LONGEST_MS = 90_000

if not os.environ.get("CI"):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[browser]")
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine", allow_module_level=True)

from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=LONGEST_MS)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server of its own with an empty store, on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "explorer", "--no-browser", "--port", str(port)],
            env=os.environ | {"EXPLORER_STORE": str(folder / "store")},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        try:
            # The server says when it listens; reading ends too if it dies.
            assert any("URL" in line for line in server.stdout), (folder / "log").read_text()
            url = f"http://localhost:{port}"
            assert urllib.request.urlopen(f"{url}/_stcore/health", timeout=30).read() == b"ok"
            yield url
        finally:
            server.terminate()
            server.wait(20)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A tab that remembers what went wrong in it and which other machines it asked."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(LONGEST_MS)
    page = context.new_page()
    page.problems, page.foreign = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "request",
        lambda r: page.foreign.append(r.url) if not re.match(r"(https?|ws)://localhost|data:|blob:", r.url) else None,
    )
    yield page
    assert page.problems == []
    assert page.foreign == []
    expect(page.get_by_test_id("stException")).to_have_count(0)
    context.close()


def wait_until_done(page: Page) -> None:
    """Until the page shows a chart and no progress, and its script has ended."""
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.get_by_test_id("stProgress")).to_have_count(0)
    expect(page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]')).to_have_count(1)


def finding(page: Page) -> str:
    return page.get_by_role("heading", level=1).inner_text()


def traces(page: Page) -> list[dict]:
    """Name, type and number of points of what the chart draws."""
    return page.locator(".js-plotly-plot").first.evaluate(
        "plot => plot._fullData.map(t => ({name: t.name, type: t.type, points: t.x ? t.x.length : 0}))"
    )


def test_the_first_chart_appears_with_a_dot_for_every_seed_and_a_finding(page, address):
    page.goto(f"{address}/?{SMALL}")
    wait_until_done(page)
    found = traces(page)
    dots = {t["name"]: t["points"] for t in found if "median" not in t["name"] and "solved" not in t["name"]}
    assert dots["RNN"] == dots["Attention"] == 3 * 2  # windows 4, 8, 16 of two seeds
    assert {"RNN, median", "Attention, median"} <= {t["name"] for t in found}
    assert "attention" in finding(page).lower()


def test_moving_a_slider_by_keyboard_changes_the_chart_and_the_link(page, address):
    page.goto(f"{address}/?{SMALL}")
    wait_until_done(page)
    slider = page.get_by_role("slider", name="Weight seeds")
    slider.focus()
    slider.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"seeds=3"))
    page.wait_for_function(
        "() => document.querySelector('.js-plotly-plot')?._fullData?.some(t => t.name === 'RNN' && t.x.length === 9)"
    )
    wait_until_done(page)


def test_both_heatmaps_appear_over_the_same_sequence(page, address):
    page.goto(f"{address}/Hidden_state?window=16&steps=20")
    wait_until_done(page)
    shape = "plot => plot._fullData.filter(t => t.type === 'heatmap').map(t => [t.y.length, t.x.length])"
    sequence = "plot => plot._fullData.filter(t => t.type === 'bar').map(t => Array.from(t.y))"
    plot = page.locator(".js-plotly-plot").first
    assert plot.evaluate(shape) == [[8, 16]]
    read = plot.evaluate(sequence)
    page.get_by_role("link", name="Attention").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Attention")
    wait_until_done(page)
    assert plot.evaluate(shape) == [[1, 16]]
    assert plot.evaluate(sequence) == read


def test_settings_survive_a_change_of_page_and_a_reload(page, address):
    page.goto(f"{address}/?{SMALL}&hidden=5")
    wait_until_done(page)
    page.get_by_role("link", name="Hidden state").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("last state")
    wait_until_done(page)
    assert "5 hidden units" in page.get_by_test_id("stMain").inner_text()
    page.reload()
    wait_until_done(page)
    assert "5 hidden units" in page.get_by_test_id("stMain").inner_text()
    page.get_by_role("link", name="Loss vs window").click()
    expect(page.get_by_test_id("stMain")).to_contain_text("2 weight seeds")
    expect(page.get_by_test_id("stMain")).to_contain_text("5 hidden units")


def test_a_stopped_sweep_keeps_what_is_finished_and_can_go_on(page, address):
    # The first windows take moments, the last ones minutes.
    page.goto(f"{address}/?windows=4&windows=256&seeds=1&steps=5000&hidden=64&sequences=1024&models=Mean&models=RNN")
    page.get_by_role("button", name="Stop").click()
    told = page.get_by_text(re.compile(r"Stopped with \d+ of 14 runs finished"))
    expect(told).to_be_visible()
    wait_until_done(page)
    finished = int(re.search(r"\d+", told.inner_text())[0])
    assert sum(t["points"] for t in traces(page) if t["name"] in ("Mean", "RNN") and t["points"] < 7) == finished
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_test_id("stProgress")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped with")).to_be_visible()


def test_back_leads_to_the_page_before_with_its_settings(page, address):
    page.goto(f"{address}/?{SMALL}&hidden=5")
    wait_until_done(page)
    page.get_by_role("link", name="Attention").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Attention puts")
    page.go_back()
    expect(page.get_by_test_id("stMain")).to_contain_text("2 weight seeds")
    expect(page.get_by_test_id("stMain")).to_contain_text("5 hidden units")


def test_two_tabs_with_different_settings_do_not_disturb_each_other(page, address, browser):
    other = browser.new_page()
    page.goto(f"{address}/?{SMALL}&hidden=3")
    other.goto(f"{address}/?{SMALL}&hidden=4")
    for tab, units in ((page, 3), (other, 4)):
        wait_until_done(tab)
        assert f"{units} hidden units" in tab.get_by_test_id("stMain").inner_text()
    other.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "Hidden_state", "Attention"])
def test_a_page_is_accessible_and_fits_a_phone(browser, address, path, theme):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}/{path}?{SMALL}&window=16" if not path else f"{address}/{path}?window=16&steps=20")
    wait_until_done(page)
    width = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth")
    assert width <= 4
    found = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found] == []
    context.close()
