"""What Django's own listeners hear. A thin bridge: sluicegate decides without it."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

rate_limited: Final = Signal()
"""A request was refused. Arguments: `request`, `decision`; the sender is the request's class.

Receivers may be async. What they raise is logged by Django, and the answer stays the same.
"""
