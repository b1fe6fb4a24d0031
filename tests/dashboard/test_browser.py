"""The dashboard of each example on its real server, in a real browser: `scripts/programs` installs it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from sluicegate import Limiter
from sluicegate.identity import digest, identity_text
from tests.running import ask, running
from tests.servers import Server, free_port
from tests.servers import ask as command

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# See tests/replay/test_page.py: a browser is started before `--fast` could skip a test.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/programs installs it"),
]
UVICORN = "-m uvicorn --host 127.0.0.1 --port {port} --workers {workers} examples.dashboard."
GUNICORN = "-m gunicorn --bind 127.0.0.1:{port} --workers {workers} --threads 4 examples.dashboard."
SHOPS: Final = {
    "starlette": f"{UVICORN}starlette_shop:app",
    "fastapi": f"{UVICORN}fastapi_shop:app",
    "flask": f"{GUNICORN}flask_shop:app",
    "django-wsgi": f"{GUNICORN}django_shop:application",
    "django-asgi": f"{UVICORN}django_shop:asgi",
}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
WIDTHS: Final = (1280, 390)
ALICE: Final = digest(identity_text(("header:x-api-key", "alice")))
AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
PATIENCE: Final = 15_000  # milliseconds, on a busy machine


class Shop(NamedTuple):
    """An example that runs, and the address of its store."""

    port: int
    store: str

    def export(self, key: str = "alice") -> int:
        return ask(self.port, "GET", "/export", {"X-API-Key": key}).status

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send some requests a second."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.05):
                self.export()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(name: str, store: str, *, workers: int = 2) -> Iterator[Shop]:
    port = free_port()
    words = SHOPS[name].format(port=port, workers=workers).split()
    with running(words, port, env={"SLUICEGATE_STORE": store}):
        yield Shop(port, store)


@contextmanager
def visiting(browser: Browser, shop: Shop, **options: Any) -> Iterator[Page]:
    """A member of the staff who has signed in. At the end the console is empty, and all came from the shop."""
    context: BrowserContext = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page, said = context.new_page(), list[str]()
    base = f"http://127.0.0.1:{shop.port}"
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((base, "data:")) else said.append(request.url))
    context.request.post(f"{base}/sign-in", form={"password": "opensesame"})
    page.goto(f"{base}/limits")  # without a slash, as people type it
    expect(page.get_by_role("heading", level=1)).to_have_text("Limits")
    try:
        yield page
        assert said == []
    finally:
        context.close()


def refusals(page: Page) -> int:
    """How often the rule has refused in the last minute, as the page shows it."""
    row = page.locator("tr", has=page.get_by_role("rowheader", name="export"))
    return int(row.locator(".refusals").inner_text().replace(",", "")) if row.count() else 0


def rises(page: Page, above: int) -> int:
    """Wait until the page shows more refusals by itself."""
    page.wait_for_function(
        "above => [...document.querySelectorAll('.refusals')].some((each) => parseInt(each.innerText) > above)",
        arg=above,
    )
    return refusals(page)


def faults(page: Page) -> list[str]:
    """What axe-core finds, the serious faults only; and what is wider than the window."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    said = [f"{each['id']}: {json.dumps([node['html'] for node in each['nodes']][:3])}" for each in serious]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        said.append("wider than the window")
    return said


@pytest.mark.parametrize("name", SHOPS)
def test_an_operator_sees_refusals_unbans_and_overrides(name: str, browser: Browser, valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    with opened(name, valkey.url) as shop, visiting(browser, shop) as page:
        assert ask(shop.port, "GET", "/limits/").status == 403
        with shop.load():
            first = rises(page, 0)
            rises(page, first)
            expect(page.get_by_role("rowheader", name=ALICE).first).to_be_visible()
            page.get_by_role("link", name="Bans").click()
            unban = page.get_by_role("button", name=f"Unban {ALICE}")
            for _ in range(50):
                if unban.count():
                    break
                page.reload()
        assert shop.export() == 429
        unban.click()
        expect(page.get_by_role("status")).to_contain_text("done")
        with Limiter(valkey.url, deadline=2) as limiter:
            assert not limiter.opened.rule_ids(identity_text(("header:x-api-key", "alice"))) & {"greedy:ban"}

        if not page.get_by_label("Rule").is_visible():
            page.get_by_text("Set an override").click()
        page.get_by_label("Rule").fill("export")
        page.get_by_label("Quota").fill("100000/minute")
        page.get_by_label("Only this identity").fill("header:X-API-Key=alice")
        page.get_by_label("For how long").fill("2h")
        page.get_by_label("Why").fill("a big import")
        page.get_by_role("button", name="Set the override").click()
        expect(page.get_by_role("status")).to_contain_text("done")
        expect(page.get_by_role("cell", name="100000/minute").first).to_be_visible()
        assert "alice" not in page.content()
        waited = threading.Event()
        statuses = []
        for _ in range(60):  # all processes follow within 2 seconds; a refusal is repeated for one
            statuses.append(shop.export())
            if statuses[-20:] == [200] * 20:
                break
            waited.wait(0.1)
        assert statuses[-20:] == [200] * 20, statuses
        assert shop.export("bob") == 200

        page.get_by_label("Identity, as").fill("header:X-API-Key=alice")
        page.get_by_role("button", name="Show its budgets").click()
        expect(page.get_by_role("cell", name="100,000 in 1 min")).to_be_visible()
        page.get_by_role("button", name="Reset all its budgets").click()
        expect(page.get_by_role("status")).to_contain_text("done")
        page.get_by_role("button", name="Undo the last change").click()
        expect(page.get_by_text("The rules hold as they are written.")).to_be_visible()


def test_in_memory_the_page_shows_its_process(browser: Browser) -> None:
    with ExitStack() as stack:
        shop = stack.enter_context(opened("starlette", "memory://", workers=1))
        page = stack.enter_context(visiting(browser, shop))
        with shop.load():
            rises(page, rises(page, 0))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_no_serious_fault(browser: Browser, valkey: Server, scheme: Literal["light", "dark"]) -> None:
    command(valkey, "FLUSHALL")
    with opened("starlette", valkey.url) as shop:
        with Limiter(valkey.url, deadline=2) as limiter:
            limiter.overrides.set(
                "export", "10/minute", identities=[("header:x-api-key", "bob")], until="2h", why="big"
            )
        with shop.load(), visiting(browser, shop, color_scheme=scheme) as page:
            rises(page, 0)
            for path in ("", "bans", f"identity?who={ALICE}"):
                page.goto(f"http://127.0.0.1:{shop.port}/limits/{path}")
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    assert faults(page) == [], (path, width)


def test_by_keyboard_alone(browser: Browser, valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    with opened("starlette", valkey.url) as shop, visiting(browser, shop) as page, shop.load():
        rises(page, 0)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        top = page.get_by_role("rowheader", name=ALICE).get_by_role("link").first
        expect(top).to_be_focused()
        rises(page, refusals(page))  # the live part was replaced, and the focus is where it was
        expect(top).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("One identity")


def test_it_works_without_script(browser: Browser, valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    with opened("flask", valkey.url) as shop, visiting(browser, shop, java_script_enabled=False) as page:
        assert page.locator("noscript meta[http-equiv=refresh]").count() or "refresh" in page.content()
        page.get_by_label("Rule").fill("export")
        page.get_by_label("What holds instead").select_option("off")
        page.get_by_role("button", name="Set the override").click()
        expect(page.get_by_role("status")).to_contain_text("done")
