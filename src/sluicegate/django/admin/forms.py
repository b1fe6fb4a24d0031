"""The form that sets an override."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from sluicegate.overrides.override import ACTIONS, EVERY_RULE
from sluicegate.rules.rule import Rule
from sluicegate.rules.tiers import Tiers

_IDENTITIES = "One on each line, as user:42, ip:203.0.113.7 or header:X-API-Key=abc. Without any: everybody."
_UNTIL = 'How long, as "2h" or "7 days", or a moment, as 2026-12-01 18:00. Empty: until it is removed.'


class OverrideForm(forms.Form):
    """What `Overrides.set` takes. Its errors are those of sluicegate: here is only read what a person has typed."""

    rule = forms.ChoiceField()  # the choices of this and of the tier are those of the project
    action = forms.ChoiceField(choices=[(each, each) for each in ACTIONS])
    quota = forms.CharField(required=False, help_text='For the action "quota": as 300/minute.')
    identities = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 3}), help_text=_IDENTITIES)
    pattern = forms.CharField(required=False, help_text="Instead of identities, as user:test-*.")
    tier = forms.ChoiceField(required=False)
    until = forms.CharField(required=False, help_text=_UNTIL)
    why = forms.CharField(required=False, help_text="For the history.")

    def __init__(self, data: Any, rules: Iterable[Rule]) -> None:
        super().__init__(data)
        self.rules = tuple(rules)
        tables = [each.quota.table for each in self.rules if isinstance(each.quota, Tiers)]
        names, tiers = {each.name for each in self.rules}, {str(tier) for each in tables for tier in each}
        chosen = [*[(name, name) for name in sorted(names)], (EVERY_RULE, "every rule")]
        self.fields["rule"] = forms.ChoiceField(choices=chosen)
        chosen = [("", "—"), *[(tier, tier) for tier in sorted(tiers)]]
        self.fields["tier"] = forms.ChoiceField(choices=chosen, required=False)

    def clean_identities(self) -> list[str]:
        """Return the typed words of each identity."""
        return [line.strip() for line in self.cleaned_data["identities"].splitlines() if line.strip()]

    def clean_until(self) -> datetime | timedelta | str | None:
        """Return a moment, or the words for a length of time."""
        text: str = self.cleaned_data["until"]
        try:
            found = parse_datetime(text) if "-" in text else None
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        if found is None:
            return text or None
        return make_aware(found) if is_naive(found) else found
