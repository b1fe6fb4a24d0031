"""The exam that every adapter takes, by Django: once as a server speaks WSGI to it, once ASGI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sluicegate.testing.adapter import AdapterClient, AdapterExam
from tests.adapters.django_app import serving


class DjangoExam(AdapterExam):
    """One exam for both colours."""

    charges_preflights = True
    later: bool

    @pytest.fixture(autouse=True)
    def _restore(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def client(self, **options: Any) -> AdapterClient:
        self.stack.close()  # one SLUICEGATE holds at a time
        return self.stack.enter_context(serving(later=self.later, **options))


class TestDjangoWSGI(DjangoExam):
    later = False


class TestDjangoASGI(DjangoExam):
    later = True
