"""The Django signal that is sent for each refused request. Its receivers cannot change the decision."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

rate_limited: Final = Signal()
"""Sent when a request is refused. Arguments: `request`, `decision`; the sender is the request's class.

Receivers may be async. Django logs what a receiver raises, and the response does not change.
"""
