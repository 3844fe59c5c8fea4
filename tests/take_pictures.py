"""Takes the README's pictures from a running app: python tests/take_pictures.py [ADDRESS]."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from test_browser import CHROMIUM, FLAGS, wait_until_done

FOLDER = Path(__file__).resolve().parent.parent / "explorer" / "ui" / "pictures"
PAGES = {"loss-vs-window": "", "hidden-state": "Hidden_state", "attention": "Attention"}


def main(address: str = "http://localhost:8501") -> None:
    """Writes a PNG of each page's first screen, light theme."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, path in PAGES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
            page.goto(f"{address}/{path}")
            wait_until_done(page)
            page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
