"""A page of the program in a browser that reaches no network."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser


class Opened:
    """A report in a window of its own, without a network, and all that the browser said and asked for."""

    def __init__(self, browser: Browser, report: Path, **settings: Any) -> None:
        self.context = browser.new_context(offline=True, **settings)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def close(self) -> None:
        self.context.close()
