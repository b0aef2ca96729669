#!/usr/bin/env python3
"""Draws docs/page.png: the page of `kvasir serve` after three questions to the bundled model, in Chromium.

    tools/page_picture.py [build/release/kvasir]      needs .venv with tests/requirements-all.txt, and chromium
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from page_browser import CHROMIUM, expect, sync_playwright  # noqa: E402
from server_harness import Server  # noqa: E402

SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."
QUESTIONS = ["Who are you?", "Where does Anna live?", "What is the code of the green safe?"]
OUT = ROOT / "docs/page.png"
MOST_BYTES = 150_000


def main():
    with Server("--kv-memory", "16MiB", "--disk", "none") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 820}, color_scheme="light")
        page.goto(server.url + "/")
        expect(page.locator("#model")).not_to_be_empty()
        page.locator("#show-settings").click()
        page.locator("#system").fill(SYSTEM)
        page.locator("#save").click()
        for i, question in enumerate(QUESTIONS):
            page.locator("#text").fill(question)
            page.locator("#text").press("Enter")
            expect(page.locator("article .receipt")).to_have_count(i + 1)
        page.screenshot(path=OUT)
        browser.close()
    if OUT.stat().st_size > MOST_BYTES:
        sys.exit(f"{OUT} has {OUT.stat().st_size} bytes; {MOST_BYTES} are the most")
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
