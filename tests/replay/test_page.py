"""The HTML report of a replay, in a real browser: `scripts/programs` installs it. One browser serves all tests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from examples.shop_log import Model
from sluicegate import Quota, Rule, Settings
from sluicegate.replay.candidates import from_rules
from sluicegate.replay.page import html
from sluicegate.replay.result import Candidate, Curve, Point, Result
from sluicegate.replay.run import replay
from tests.replay.decided import Given
from tests.replay.results import (
    HOSTILE,
    LOGIN,
    crowded,
    empty,
    generated,
    hostile,
    nothing_refused,
)
from tests.replay.shop import frames

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RESULTS = (generated, nothing_refused, empty, hostile, crowded)
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
Opens = Callable[..., Page]

# `--fast` skips a test at the moment when it starts a process. That is too late for a browser: Playwright's own loop
# then stays the running one of the thread, and every later `asyncio.run` of this process fails.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/programs installs it"),
]

FOCUS = """(element) => [element, element.closest(".card") ?? element, ...element.children].some(
    (each) => getComputedStyle(each).outlineStyle !== "none" || getComputedStyle(each).strokeWidth === "3px")"""
FAULTS = (Path(__file__).parent / "faults.js").read_text("utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opens(browser: Browser, tmp_path: Path) -> Iterator[Opens]:
    """Open the page of a result from a file. At the end, nothing else was asked for, and the console is empty."""
    said: list[str] = []
    contexts = []

    def opened(result: Result, *, width: int = 1280, **options: Any) -> Page:
        path = tmp_path / "report.html"
        path.write_text(html(result), "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def numbers(limit: Locator) -> Point:
    """What stands beside a line."""
    figures = [limit.locator(".value").evaluate("(each) => each.firstChild.data")]
    figures += [limit.locator(f"[data-fact={name}] b").inner_text() for name in ("refused", "identities", "people")]
    return Point(*[int(re.sub(r"\D", "", figure)) for figure in figures])


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize("made", RESULTS, ids=lambda each: each.__name__)
def test_every_result_has_a_page(opens: Opens, made: Callable[[], Result]) -> None:
    result = made()
    page = opens(result)
    assert page.locator("h1").inner_text()
    assert page.locator(".card").count() == len(result.candidates)
    for width in (1600, 768, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert fits(page), width
    for place, each in enumerate(result.candidates[:3]):
        page.locator(".card").nth(place).click()
        assert page.locator(".limit").count() == len(each.curves)
        assert page.get_by_text(each.curves_note or "Rules", exact=True).first.is_visible()
        assert f"{each.refused:,}" in page.locator(".card").nth(place).inner_text()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        page.wait_for_function("[...document.querySelectorAll('details')].every((each) => each.querySelector('table'))")
        assert fits(page)
        for scheme in SCHEMES if place == 0 else SCHEMES[:1]:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(FAULTS) == [], scheme


def test_the_theme_can_be_switched(opens: Opens) -> None:
    page = opens(generated(), color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) == dark != "rgb(255, 255, 255)"


def test_a_line_is_moved_by_keys(opens: Opens) -> None:
    page, found = opens(generated()), generated().candidates[2]
    page.locator(".card").nth(2).click()
    for curve, limit in zip(found.curves, page.locator(".limit").all(), strict=True):
        points, slider = curve.points, limit.get_by_role("slider")
        own = [point.limit for point in points].index(curve.limit)
        assert numbers(limit) == points[own]
        assert numbers(limit)[1:3] == (found.refused, found.refused_identities)
        slider.focus()
        at = own
        moves = {
            "ArrowRight": 1,
            "ArrowUp": 1,
            "ArrowLeft": -1,
            "ArrowDown": -1,
            "PageDown": -5,
            "End": 99,
            "PageUp": 5,
            "Home": -99,
        }
        for key, step in moves.items():
            at = max(0, min(len(points) - 1, at + step))
            page.keyboard.press(key)
            assert numbers(limit) == points[at], key
            assert int(slider.get_attribute("aria-valuenow") or 0) == points[at].limit
            assert f"{points[at].refused:,} requests" in (slider.get_attribute("aria-valuetext") or "")
        limit.get_by_role("button", name="Back").click()
        assert numbers(limit) == points[own]


@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "touch"])
def test_a_line_is_dragged_over_every_point(opens: Opens, *, touch: bool) -> None:
    page, curve = opens(generated(), has_touch=touch), generated().candidates[0].curves[0]
    limit = page.locator(".limit").first
    limit.scroll_into_view_if_needed()
    dots = [dot.bounding_box() for dot in limit.locator(".dot").all()]
    line = limit.locator(".handle line").bounding_box()
    assert line is not None
    seen = []
    if not touch:
        page.mouse.move(line["x"], line["y"] + 20)
        page.mouse.down()
    for box in dots:
        assert box is not None
        place = (box["x"] + box["width"] / 2 + 1, line["y"] + 30)
        page.touchscreen.tap(*place) if touch else page.mouse.move(*place)
        seen.append(numbers(limit))
    if not touch:
        page.mouse.up()
        page.mouse.move(line["x"], line["y"])  # the line was released
    assert tuple(seen) == curve.points
    assert numbers(limit) == curve.points[-1]


def test_the_numbers_are_what_a_replay_with_that_limit_says(opens: Opens) -> None:
    """Of a rule beside another one, on traffic with people, programs and attacks."""
    traffic = list(frames(Model(days=1, visitors=60, office=20, attack=0.5)))

    def replayed(limit: int) -> Result:
        candidate = from_rules(["login: 5/minute by ip on POST /login", f"pages: {limit}/minute by ip"])
        return replay(Given(traffic), [candidate])

    page = opens(replayed(60))
    limit = page.locator(".limit").nth(1)
    for key in ("ArrowRight", "PageDown"):
        limit.get_by_role("slider").press(key)
        moved = numbers(limit)
        (again,) = replayed(moved.limit).candidates
        assert moved.limit != 60
        assert moved == (moved.limit, again.refused, again.refused_identities, again.people)


def with_rule(found: Candidate, curve: Curve, **changed: Any) -> Result:
    rule = found.rules[0]._replace(**changed, rule=changed.get("name", "login"))
    curve = curve._replace(rule=rule.name)
    return generated()._replace(candidates=(found._replace(rules=(rule,), curves=(curve,)),))


@pytest.mark.parametrize(
    ("changed", "period", "options"),
    [
        ({"quota": "5/minute"}, 60, {"key": "ip", "path": "/login", "methods": {"POST"}}),
        ({"quota": "5/minute", "applies_to": "/"}, 60, {"path": "/", "methods": None}),
        ({"quota": "5/minute", "name": "5/minute"}, 60, {"name": "login"}),
        (
            {"quota": "5 per 5 minutes burst 7", "algorithm": "gcra", "applies_to": 'GET,POST /a "b\\é🦀/*'},
            300,
            {"path": '/a "b\\é🦀/*', "methods": {"GET", "HEAD", "POST"}, "algorithm": "gcra"},
        ),
        ({"quota": "5/m", "key": "ip + header:X-Key", "applies_to": "DELETE"}, 60, {"methods": {"DELETE"}}),
    ],
)
def test_the_rule_to_paste_has_the_dragged_limit(
    opens: Opens, tmp_path: Path, changed: dict[str, Any], period: float, options: dict[str, Any]
) -> None:
    found = generated().candidates[0]
    curve = found.curves[0]._replace(period=period)
    page = opens(with_rule(found, curve, **changed), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("slider").press("ArrowRight")
    limit = numbers(page.locator(".limit").first).limit
    assert limit > LOGIN.limit
    pasted = {}
    for form in ("TOML", "decorator"):
        page.get_by_role("button", name=f"Copy as {form}").click()
        page.get_by_text(f"{form} with {limit} copied.").wait_for()
        pasted[form] = page.evaluate("navigator.clipboard.readText()")
    assert page.locator(".numbers pre").inner_text().strip() == pasted["TOML"].strip()
    quotas = Quota.parse_all(re.sub(r"\b5(?=/m| per)", str(limit), changed["quota"]))
    (tmp_path / "pasted.toml").write_text(f'[sluicegate]\nstore = "memory://"\n{pasted["TOML"]}', "utf-8")
    (rule,) = cast("tuple[Rule]", Settings.from_toml(tmp_path / "pasted.toml").rules)
    assert rule.quota == quotas
    assert {name: getattr(rule, name) for name in options} == options
    assert rule.mode == "shadow"
    view: dict[str, Any] = {}
    exec(
        f"def limit(*quota, **options): return lambda view: (quota, options)\n{pasted['decorator']}def made(): ...",
        view,
    )
    (quota,), given = view["made"]
    of_view = Rule(quota=quota, path=rule.path, **given)  # the view has the path
    assert of_view == replace(rule, scope=rule.name)


def test_every_control_is_reached_by_tab(opens: Opens) -> None:
    page = opens(generated())
    controls = "button:not(:disabled), summary, [role=slider], input:checked"
    wanted = page.locator(controls).count()
    reached = set()
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
        place = page.evaluate(f"[...document.querySelectorAll('{controls}')].indexOf(document.activeElement)")
        reached.add(place)
        if place >= 0:
            assert page.locator(controls).nth(place).evaluate(FOCUS), "the focus can be seen"
    assert reached - {-1} == set(range(wanted))


def test_it_prints_light_and_whole(opens: Opens) -> None:
    page = opens(generated(), color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # every candidate, with its rules to paste
    curves = [curve for each in generated().candidates for curve in each.curves]
    assert page.locator(".limit svg.plot .dot").count() == sum([len(each.points) for each in curves])
    assert page.locator(".limit pre:visible").count() == len(curves)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("button:visible, details:visible, input:visible").count() == 0
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 between margins of 14 mm
    assert fits(page)
    assert {each.evaluate("(each) => getComputedStyle(each).breakInside") for each in page.locator("figure").all()} == {
        "avoid"
    }
    assert page.evaluate(FAULTS) == []
    assert page.pdf(format="A4")[:4] == b"%PDF"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".limit").count() == len(generated().candidates[0].curves)


def test_less_motion(opens: Opens) -> None:
    page = opens(generated(), reduced_motion="reduce")
    assert page.locator("button").first.evaluate("(each) => getComputedStyle(each).transitionDuration") == "0s"


def test_hostile_text_is_text(opens: Opens) -> None:
    page = opens(hostile())
    assert page.title() == "sluicegate replay"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    text = page.evaluate("document.body.innerText")
    script, image, _, long = HOSTILE
    assert script in text
    assert image in text
    assert r"back\u2028\u202eright to left" in text
    assert r"zero\u200bwidth\U000e0041" in text
    assert r"\x1b[31m\x00" in text
    assert not set(text) & {"\u202e", "\u2028", "\u200b", "\U000e0041", "\x1b", "\0"}
    titles = page.locator("bdi[title]").evaluate_all("(all) => all.map((each) => each.title)")
    assert long in titles
    assert long[:119] + "…" in text


def test_the_page_forbids_the_network(opens: Opens) -> None:
    """The policy of the page stops a script that a hole of ours would let in, and every address of another host."""
    page = html(generated())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert set(re.findall(r"https?://[^\s\"')]*", page)) == {"http://www.w3.org/2000/svg"}
