"""Draws the pictures of docs/replay-report.md: the report of the log that docs/choose-a-limit.md follows, in a real
browser.

    python -m docs.report

It needs chromium, which scripts/programs installs. The letters are those of this machine, so the pictures are not
compared with what this script draws.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

from docs.pages import DOCS
from examples.shop_log import Model, write
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.log import Log
from sluicegate.replay.page import html
from sluicegate.replay.run import replay

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
WIDE: Final = 1180  # pixels
HIGH: Final = 2020
RULES: Final = ("guess: 3/minute by ip on POST /login", "login: 50/hour by ip on POST /login", "pages: 60/minute by ip")
SHOWN: Final = 1  # of these


def picture(scheme: str) -> Path:
    """Return the path of a picture."""
    return DOCS / "assets" / f"replay-{scheme}.png"


def draw() -> None:
    """Draw the top of the report, light and dark."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "report.html")
        log = Path(folder, "access.log")
        write(Model(), log)
        result = replay(Log([log]), [from_rules([rule]) for rule in RULES])
        page_file.write_text(html(result), "utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in SCHEMES:
            page = browser.new_page(viewport={"width": WIDE, "height": HIGH}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.locator(".card").nth(SHOWN).click()
            page.get_by_role("slider").wait_for()
            page.mouse.click(WIDE - 5, 5)  # no focus ring in the picture
            page.screenshot(path=picture(scheme))
        browser.close()


if __name__ == "__main__":
    draw()
    for each in SCHEMES:
        print(f"drew {picture(each)}")
