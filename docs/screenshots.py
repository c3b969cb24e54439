"""Take the README's pictures of the report again: a real run on LoCoMo, in headless Chromium.

python docs/screenshots.py [--run runs/evaluate --words "dog"] [--data locomo10.json] [--chromium PATH]

With ``--run`` the report of that run is pictured, and the first question that has all of ``--words``; without
it, the extractive baseline is run first.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.report.report_page import REPORT_FILE

IMAGES = Path(__file__).parent / "images"


def take(browser: Browser, report: Path, words: str) -> None:
    """Picture the scores by day, a question by night, and a question on a phone."""
    scores = _opened(browser, report, width=1200, height=900)
    scores.screenshot(path=IMAGES / "report-scores.png")
    question = _opened(browser, report, width=1200, height=900, scheme="dark")
    _open_question(question, words)
    question.evaluate("document.getElementById('questions').scrollIntoView()")
    question.screenshot(path=IMAGES / "report-question.png")
    phone = _opened(browser, report, width=390, height=800)
    _open_question(phone, words)
    phone.evaluate("document.querySelector('#question h3').scrollIntoView()")
    phone.screenshot(path=IMAGES / "report-phone.png")


def _opened(browser: Browser, report: Path, width: int, height: int, scheme: str = "light") -> Page:
    page = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    ).new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def _open_question(page: Page, words: str) -> None:
    page.get_by_label("Words").fill(words)
    page.locator("#list button").first.click()
    page.locator(".shown summary").first.click()


def main() -> None:
    """Run what is to be pictured, and write the images."""
    parser = argparse.ArgumentParser(description="Take the README's pictures of the report.")
    parser.add_argument("--run", type=Path, help="the folder of a run; without it, one is made")
    parser.add_argument("--words", default="Caroline research", help="what the pictured question says")
    parser.add_argument("--data", type=Path, help="locomo10.json; downloaded once if not given")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = options.run
        if run is None:
            run = Path(folder) / "extractive"
            of_locomo = {"dataset": "locomo", "data": options.data, "systems": "extractive"}
            evaluate(EvaluateConfig(**of_locomo, output_dir=run, mlflow=False))
        browser = playwright.chromium.launch(executable_path=options.chromium)
        take(browser, run / REPORT_FILE, options.words)
        browser.close()


if __name__ == "__main__":
    main()
