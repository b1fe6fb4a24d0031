"""Draws the pictures of docs/dashboard.md: the page of an example under load, in a real browser.

    python -m docs.dashboard

It needs chromium, which scripts/programs installs. The letters are those of this machine, so the pictures are not
compared with what this script draws.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

from docs.pages import DOCS
from tests.running import ask, running
from tests.servers import free_port, valkey_server

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SIZES: Final = {"": (1100, 1150), "-phone": (390, 844)}
REQUESTS: Final = {"alice": 4, "bob": 9, "carol": 14}


def picture(name: str) -> Path:
    """Return the path of a picture."""
    return DOCS / "assets" / f"dashboard-{name}.png"


def draw() -> None:
    """Draw the page, light and dark, and on a phone."""
    server, port = valkey_server(), free_port()
    server.start()
    command = f"-m uvicorn --host 127.0.0.1 --port {port} examples.dashboard.starlette_shop:app".split()
    with running(command, port, env={"SLUICEGATE_STORE": server.url}), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        base = f"http://127.0.0.1:{port}"
        for scheme in SCHEMES:
            for size, (width, height) in SIZES.items():
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                context.request.post(f"{base}/sign-in", form={"password": "opensesame"})
                page = context.new_page()
                page.goto(f"{base}/limits/")
                if not page.get_by_role("cell", name="300/minute").count():
                    page.get_by_label("Rule").fill("export")
                    page.get_by_label("Quota").fill("300/minute")
                    page.get_by_label("Only this identity").fill("header:X-API-Key=dave")
                    page.get_by_label("For how long").fill("7d")
                    page.get_by_label("Why").fill("a big import")
                    page.get_by_role("button", name="Set the override").click()
                    page.goto(f"{base}/limits/")
                for each in range(6):
                    for key, times in REQUESTS.items():
                        for _ in range(times - each):
                            ask(port, "GET", "/export", {"X-API-Key": key})
                    page.wait_for_timeout(1200)
                page.screenshot(path=picture(f"{scheme}{size}"))
                context.close()
        browser.close()
    server.stop()


if __name__ == "__main__":
    draw()
