"""The overrides in Django's admin: who may see and change them, what a form does, and what it says if it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync

import tests.adapters.django_app as site
from sluicegate import ManualClock
from sluicegate.identity import digest, identity_text
from sluicegate.overrides import Overrides
from sluicegate.rules.tiers import Tiers
from tests.servers import Server, ask

# isort: split
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.core.management import call_command
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.test.utils import override_script_prefix
from django.urls import path

from sluicegate.django import conf

PAGE = "/admin/sluicegate_admin/override/"
CONTRIB = ("auth", "contenttypes", "sessions", "messages", "staticfiles", "admin")
PROCESSORS = ("django.template.context_processors.request", "django.contrib.auth.context_processors.auth")
PROJECT: dict[str, Any] = {
    "INSTALLED_APPS": [*[f"django.contrib.{each}" for each in CONTRIB], "sluicegate.django", "sluicegate.django.admin"],
    "MIDDLEWARE": [site.OURS, site.SESSIONS, site.AUTH, "django.contrib.messages.middleware.MessageMiddleware"],
    "AUTHENTICATION_BACKENDS": ["django.contrib.auth.backends.ModelBackend"],
    "STATIC_URL": "static/",
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [*PROCESSORS, "django.contrib.messages.context_processors.messages"],
            },
        }
    ],
}
RULES = [
    {"name": "export", "quota": "2/minute", "key": "user", "path": "/export"},
    {"name": "plan", "quota": Tiers({"free": "1/minute", "pro": "9/minute"}, by=lambda request: "free"), "path": "/x"},
]
WHO: dict[str, tuple[bool, tuple[str, ...]]] = {  # staff, and permissions
    "nobody": (False, ()),
    "staff": (True, ()),
    "viewer": (True, ("view_override",)),
    "changer": (True, ("change_override",)),
}
FILLED = {"do": "set", "rule": "export", "action": "quota", "quota": "5/minute", "why": "a big import"}
ALICE = digest(identity_text(("user", "alice")))


def export(request: Any) -> HttpResponse:
    return HttpResponse("export")


@pytest.fixture(scope="module")
def project() -> Iterator[None]:
    """The project with its admin and its users."""
    with override_settings(**PROJECT):
        with override_settings(ROOT_URLCONF=(path("admin/", admin.site.urls), path("export", export))):
            call_command("migrate", verbosity=0)
            for name, (is_staff, permissions) in WHO.items():
                user = User.objects.create(username=name, is_staff=is_staff)
                user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
            yield
        User.objects.all().delete()


class Office:
    """The admin of the project, as somebody uses it who has signed in."""

    def __init__(self, overrides: Callable[[], Overrides], clock: ManualClock, *, asgi: bool) -> None:
        self._overrides, self._clock, self._asgi = overrides, clock, asgi

    @property
    def overrides(self) -> Overrides:
        return self._overrides()

    def ask(self, who: str, data: dict[str, str] | None = None, *, where: str = PAGE, **options: Any) -> Any:
        client: Any = (AsyncClient if self._asgi else Client)(**options)
        if who:
            client.force_login(User.objects.get(username=who))
        method = client.get if data is None else client.post
        return (async_to_sync(method) if self._asgi else method)(where, *([] if data is None else [data]))

    def exports(self, times: int) -> list[int]:
        """Send requests of the viewer to the application, after its processes have followed."""
        self._clock.advance(3)
        return [self.ask("viewer", where="/export").status_code for _ in range(times)]


@pytest.fixture(params=["wsgi memory", "wsgi valkey", "asgi memory", "asgi valkey"])
def office(request: pytest.FixtureRequest, project: None) -> Iterator[Office]:
    protocol, store = request.param.split()
    options: dict[str, Any] = {"RULES": RULES, "CLOCK": ManualClock(), "STORE": "memory://", "DENY_CACHE": 0}
    if store == "valkey":
        server: Server = request.getfixturevalue("valkey")
        ask(server, "FLUSHALL")
        options |= {"STORE": server.url, "DEADLINE": 5}
    # A real request leaves its mount for the thread, and the client of Django's tests has none.
    with override_settings(SLUICEGATE=options), override_script_prefix("/"):
        gate = conf.loop_gate if protocol == "asgi" else conf.sync_gate
        yield Office(lambda: gate().limiter.overrides, options["CLOCK"], asgi=protocol == "asgi")


STATUSES = {  # the page, remove, set, undo
    "": (302, 302, 302, 302),
    "nobody": (302, 302, 302, 302),
    "staff": (403, 403, 403, 403),
    "viewer": (200, 403, 403, 403),
    "changer": (200, 302, 302, 302),
}


@pytest.mark.slow
@pytest.mark.parametrize("who", STATUSES)
def test_who_may_do_what(office: Office, who: str) -> None:
    held = office.overrides.set("export", "3/minute")
    asked = (None, {"do": "remove", "id": held.id}, FILLED, {"do": "undo"})
    for data, status in zip(asked, STATUSES[who], strict=True):
        before = office.overrides.list()
        answer = office.ask(who, data)
        assert answer.status_code == status, data
        changed = who == "changer" and data is not None
        assert (office.overrides.list() != before) is changed, data
        if status == 302:
            assert answer.headers["Location"].startswith(PAGE if who == "changer" else "/admin/login/")


def test_the_index_links_to_the_page_for_those_who_may_see_it(office: Office) -> None:
    linked = {who: PAGE in office.ask(who, where="/admin/").text for who in ("staff", "viewer", "changer")}
    assert linked == {"staff": False, "viewer": True, "changer": True}


def test_a_project_has_nothing_to_migrate_and_no_warning(office: Office) -> None:
    assert not run_checks()
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


@pytest.mark.slow
def test_set_remove_undo_and_the_history(office: Office) -> None:
    assert office.exports(3) == [200, 200, 429]
    whom = {"identities": "user:alice\n\n ip:203.0.113.7 \n", "until": "2h"}
    assert office.ask("changer", FILLED | whom).status_code == 302
    (held,) = office.overrides.list()
    assert (held.rule, held.quota, held.by, held.why) == ("export", "5/minute", "changer", "a big import")
    assert set(held.digests) == {ALICE, digest(identity_text(("ip", "203.0.113.7")))}
    assert held.until is not None
    page = office.ask("viewer").text
    assert all(each in page for each in (ALICE, "5/minute", "a big import", "changer", "History"))
    assert "user:alice" not in page
    assert 'name="do"' not in page
    assert f'value="{held.id}"' in office.ask("changer").text
    office.ask("changer", {"do": "remove", "id": held.id})
    assert office.overrides.list() == ()
    office.ask("changer", {"do": "undo"})
    assert office.overrides.list() == (held,)
    assert [(each.what, each.by) for each in office.overrides.history()] == [
        ("undo", "changer"),
        ("remove", "changer"),
        ("quota", "changer"),
    ]


def test_the_next_request_passes(office: Office) -> None:
    assert office.exports(3) == [200, 200, 429]
    office.ask("changer", FILLED)
    assert office.exports(4) == [200, 200, 200, 429]
    office.ask("changer", {"do": "undo"})
    assert office.exports(1) == [429]


@pytest.mark.parametrize(
    ("typed", "held"),
    [
        ({"action": "shadow", "quota": "", "pattern": "user:test-*"}, ("export", "shadow", "user:test-*")),
        ({"rule": "*", "action": "deny", "quota": "", "identities": "user:alice"}, ("*", "deny", "")),
        ({"rule": "plan", "tier": "pro"}, ("plan", "quota", "tier pro")),
    ],
)
def test_what_can_be_set(office: Office, typed: dict[str, str], held: tuple[str, str, str]) -> None:
    assert office.ask("changer", FILLED | typed).status_code == 302
    (one,) = office.overrides.list()
    assert (one.rule, one.action, one.pattern or (f"tier {one.tier}" if one.tier else "")) == held
    assert held[2] in office.ask("viewer").text


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "a quota": ({"quota": "5/never"}, "SG001"),
    "a kind of quota": ({"quota": "2 at once"}, "SG015"),
    "no quota": ({"quota": ""}, "SG015"),
    "an action": ({"action": "stop"}, "Select a valid choice"),
    "a rule": ({"rule": "exprot"}, "Select a valid choice"),
    "a tier": ({"tier": "gold"}, "Select a valid choice"),
    "an identity": ({"identities": "alice"}, "SG006"),
    "a pattern": ({"pattern": "nothing"}, "SG015"),
    "two ways": ({"pattern": "user:a*", "identities": "user:b"}, "SG015"),
    "an end": ({"until": "soon"}, "SG015"),
    "an end in the past": ({"until": "2020-01-01 10:00"}, "SG015"),
    "no moment": ({"until": "2026-13-01 10:00"}, "month must be in"),
    "a reason": ({"why": "x" * 201}, "SG015"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_form_says_why_and_loses_nothing(office: Office, case: str) -> None:
    typed, says = WRONG[case]
    answer = office.ask("changer", {"until": "3h", **FILLED, **typed})
    assert answer.status_code == 200
    assert says in answer.text
    assert "alert" in answer.text or "errorlist" in answer.text
    kept = {"until": "3h", **FILLED, **typed}
    for name in ("quota", "why", "until", "pattern"):
        given = re.search(rf'<input type="text" name="{name}"(?: value="([^"]*)")?', answer.text)
        assert given is not None
        assert (given[1] or "") == kept.get(name, ""), name
    assert kept.get("identities", "") in answer.text
    assert office.overrides.list() == ()


@pytest.mark.parametrize("data", [{"do": "remove", "id": "nothing"}, {"do": "undo"}])
def test_what_cannot_be_taken_back(office: Office, data: dict[str, str]) -> None:
    answer = office.ask("changer", data)
    assert (answer.status_code, "SG015" in answer.text) == (200, True)


@pytest.mark.parametrize("data", [{}, {"do": "all"}])
def test_a_request_that_says_nothing_known_is_refused(office: Office, data: dict[str, str]) -> None:
    assert office.ask("changer", data).status_code == 400


def test_a_forged_form_is_refused(office: Office) -> None:
    held = office.overrides.set("export", "3/minute")
    for data in (FILLED, {"do": "remove", "id": held.id}, {"do": "undo"}):
        assert office.ask("changer", data, enforce_csrf_checks=True).status_code == 403
    assert office.overrides.list() == (held,)


def test_text_of_people_is_no_markup(office: Office) -> None:
    office.ask("changer", FILLED | {"why": "<b>why</b>"})
    page = office.ask("viewer").text
    assert "<b>why" not in page
    assert "&lt;b&gt;why" in page


@pytest.mark.parametrize("given", [False, "limits.toml"])
def test_a_project_that_does_not_follow_its_store_is_told(project: None, tmp_path: Any, given: bool | str) -> None:
    (tmp_path / "limits.toml").write_text("", "utf-8")
    follows = str(tmp_path / given) if isinstance(given, str) else given
    with override_settings(SLUICEGATE={"RULES": RULES, "OVERRIDES": follows}):
        client = Client()
        client.force_login(User.objects.get(username="changer"))
        for answer in (client.get(PAGE), client.post(PAGE, FILLED)):
            assert (answer.status_code, "does not follow its store" in answer.text) == (200, True)


def test_a_server_that_is_away_is_an_error_on_the_page(project: None) -> None:
    with override_settings(SLUICEGATE={"RULES": RULES, "STORE": "redis://127.0.0.1:1/0", "ON_STORE_FAILURE": "allow"}):
        client = Client()
        client.force_login(User.objects.get(username="changer"))
        for answer in (client.get(PAGE), client.post(PAGE, FILLED)):
            assert (answer.status_code, "SG020" in answer.text) == (200, True)
