"""The exam of all adapters, for Django: once under WSGI, once under ASGI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.client import AdapterClient
from tests.adapters.django_app import serving


class DjangoExam(AdapterExam):
    """The exam for WSGI and ASGI."""

    charges_preflights = True
    is_async: bool

    @pytest.fixture(autouse=True)
    def _restore(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def client(self, **options: Any) -> AdapterClient:
        self.stack.close()  # Django has one SLUICEGATE setting at a time
        return self.stack.enter_context(serving(asgi=self.is_async, **options))


class TestDjangoWSGI(DjangoExam):
    is_async = False


class TestDjangoASGI(DjangoExam):
    is_async = True
