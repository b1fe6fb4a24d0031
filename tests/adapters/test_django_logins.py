"""`login_failed` in Django: a right login costs nothing, a wrong one does, whatever the view answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path

from tests.adapters.django_app import serving

HERE = "tests.adapters.test_django_logins"

from django.contrib.auth import aauthenticate, authenticate, get_user_model  # noqa: E402  # needs settings
from django.contrib.auth.backends import BaseBackend  # noqa: E402
from django.contrib.auth.views import LoginView  # noqa: E402
from rest_framework.decorators import api_view, authentication_classes, permission_classes  # noqa: E402


class Accounts(BaseBackend):
    """The right password is "right"."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> Any:
        return get_user_model()(username="alice") if credentials["password"] == "right" else None


class Login(LoginView):
    def form_valid(self, form: Any) -> Any:  # without a session in the database
        return HttpResponseRedirect("/")


def redirecting(request: HttpRequest) -> HttpResponse:
    """A login whose response says nothing."""
    authenticate(request, username="alice", password=request.POST.get("password"))
    return HttpResponseRedirect("/")


async def redirecting_async(request: HttpRequest) -> HttpResponse:
    await aauthenticate(request, username="alice", password=request.POST.get("password"))
    return HttpResponseRedirect("/")


@api_view(["POST"])
@authentication_classes([])
@permission_classes([])
def of_rest_framework(request: Any) -> Any:
    user = authenticate(request, username="alice", password=request.data["password"])
    return HttpResponse("{}", content_type="application/json", status=200 if user else 202)


LOGIN: dict[str, Any] = {
    "AUTHENTICATION_BACKENDS": [f"{HERE}.Accounts"],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"registration/login.html": "again"})]},
        }
    ],
}


VIEWS = {
    "LoginView": Login.as_view(),
    "sync": redirecting,
    "async": redirecting_async,
    "REST framework": of_rest_framework,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_only_failed_logins_are_charged(view: Any, asgi: bool) -> None:
    """LoginView answers 200 for a wrong password and 302 for a right one (issue 26)."""
    rule = {"name": "login", "quota": "2/minute", "route": "login", "methods": ["POST"]}
    rules = [{**rule, "charge_when": "sluicegate.login_failed"}]
    token = "a" * 32
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    headers += [("Cookie", f"csrftoken={token}"), ("X-CSRFToken", token)]

    with serving(asgi=asgi, urls=[path("login", view, name="login")], django_settings=LOGIN, rules=rules) as site:

        def sign_in(password: str) -> bool:
            body = f"username=alice&password={password}".encode()
            sent = [*headers, ("Content-Length", str(len(body)))]
            return site.request("POST", "/login", headers=sent, body=body).status != 429

        assert [site.request("GET", "/login").status == 429 for _ in range(3)] == [False] * 3
        assert [sign_in(password) for password in ["right"] * 3 + ["wrong"] * 3 + ["right"]] == [True] * 5 + [False] * 2
