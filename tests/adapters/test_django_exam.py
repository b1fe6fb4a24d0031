"""The exam that every adapter takes, by Django: once as a server speaks WSGI to it, once ASGI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import ManualClock
from headgate.testing.adapter import AdapterClient, AdapterExam
from tests.adapters.django_app import serving


class DjangoExam(AdapterExam):
    """One exam for both colours."""

    later: bool

    @pytest.fixture(autouse=True)
    def _restore(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def client(self, **options: Any) -> AdapterClient:
        self.stack.close()  # one HEADGATE holds at a time
        return self.stack.enter_context(serving(later=self.later, **options))

    def test_preflights_are_not_counted_and_a_bare_options_is(self) -> None:
        """Django's views answer every method themselves, so a preflight that reaches one is charged: test_django.py."""
        client = self.client(default_limits=["1/minute"], clock=ManualClock())
        preflight = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]
        assert [client.request("OPTIONS", "/nowhere", headers=preflight).status for _ in range(3)] == [404] * 3
        assert client.request("OPTIONS", "/open", headers=preflight).status == 405
        assert client.request("OPTIONS", "/open").status == 429


class TestDjangoWSGI(DjangoExam):
    later = False


class TestDjangoASGI(DjangoExam):
    later = True
