"""The page of the overrides: what holds, a form to set one, buttons to remove and undo, and the history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from sluicegate.clock import MICROSECOND
from sluicegate.django import conf
from sluicegate.django.admin import models
from sluicegate.django.admin.forms import OverrideForm
from sluicegate.django.overview import endpoint_rules
from sluicegate.errors import OverrideError, SluicegateError
from sluicegate.overrides import Entry, Override, Overrides
from sluicegate.overrides.applied import rules_for
from sluicegate.overrides.override import LONGEST
from sluicegate.rules.rule import Rule
from sluicegate.web.gate import AsyncGate, Gate

_SHOWN: Final = 50  # changes of the history


@admin.register(models.Override)
class OverrideAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own class takes no parameters
    """One page instead of those of a model. Its permissions, its place in the index and its look are the admin's."""

    def get_urls(self) -> list[URLPattern]:
        """Return the one page, under the name that the index of the admin links to."""
        return [path("", self.admin_site.admin_view(self.page), name="sluicegate_admin_override_changelist")]

    def page(self, request: HttpRequest) -> HttpResponse:
        """Show the overrides. Change them first, if the request says so."""
        may_change = self.has_change_permission(request)
        if not (may_change if request.method == "POST" else self.has_view_permission(request)):
            raise PermissionDenied
        gate, do = conf.gate_for(request), request.POST.get("do")
        form, problem = OverrideForm(request.POST if do == "set" else None, _rules(gate)), ""
        held, history = tuple[Override, ...](), list[Entry]()
        try:
            if request.method == "POST" and (do != "set" or form.is_valid()):
                self.message_user(request, _change(request, gate, form))
                return HttpResponseRedirect(request.path)
        except SluicegateError as error:
            problem = str(error)
        try:
            held, history = _office(request).list(), _office(request).history(_SHOWN)
        except SluicegateError as error:  # the server is away, or what is on it cannot be read
            problem = problem or str(error)
        context = {
            **self.admin_site.each_context(request),
            "title": "Overrides",
            "opts": self.opts,
            "form": form,
            "problem": problem,
            "may_change": may_change,
            "held": [(one, _moment(one.until)) for one in held],
            "history": [(entry, _moment(entry.at)) for entry in history],
        }
        return TemplateResponse(request, "sluicegate_admin/overrides.html", context)


def _office(request: HttpRequest) -> Overrides:
    """Return the overrides of this project. Raises OverrideError if it does not follow those of its store."""
    # A sync view under ASGI runs in a thread. The gate for its code counts in the store of the async gate.
    gate = conf.loop_gate() if isinstance(request, ASGIRequest) else conf.sync_gate()
    if gate.settings.overrides is not True:
        problem, expected = "the project does not follow its store", "change that file, or set OVERRIDES to True"
        raise OverrideError("overrides", gate.settings.overrides, problem=problem, expected=expected)
    return gate.limiter.overrides


def _rules(gate: Gate | AsyncGate) -> list[Rule]:
    """Return the rules of the project, those of decorators and throttles too."""
    found = [bound.rule for each in endpoint_rules(gate) for bound in (*each.bounds, *(each.chosen or ()))]
    return list({id(rule): rule for rule in found}.values())


def _change(request: HttpRequest, gate: Gate | AsyncGate, form: OverrideForm) -> str:
    """Make the change that a person has asked for. Return what was done."""
    office, by, do = _office(request), request.user.get_username()[:LONGEST], request.POST.get("do")
    if do == "remove":
        entry = office.remove(request.POST.get("id", ""), by=by)
    elif do == "undo":
        entry = office.undo(by=by)
    elif do == "set":
        given = {name: value for name, value in form.cleaned_data.items() if value}
        rule, quota = given.pop("rule"), given.pop("quota", None)
        rules_for(rule, form.rules, quota, algorithm=gate.settings.algorithm)  # raises if one cannot have the quota
        if "identities" in given:
            given["identities"] = [gate.typed([each]) for each in given["identities"]]
        made = office.set(rule, quota, by=by, **given)
        return f"Set {made.id}. All processes follow within 2 seconds."
    else:
        raise SuspiciousOperation("no such change of overrides")
    return f"Removed {len(entry.removed)}, added {len(entry.added)}. All processes follow within 2 seconds."


def _moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us / MICROSECOND, UTC)
