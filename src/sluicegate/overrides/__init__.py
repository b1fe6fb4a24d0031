"""Overrides: what an operator sets while the application runs, for a rule and some of its identities, until a moment.

`override` has the value and the document, `applied` what holds for one identity, `follow` how a process learns of a
change, `write` how a change is made, and `file` overrides or rules in a file. An override is only another quota or mode
of a rule: the decision is the same.
"""

from sluicegate.overrides.override import Action, Entry, Override
from sluicegate.overrides.write import AsyncOverrides, OverrideOptions, Overrides

__all__ = ["Action", "AsyncOverrides", "Entry", "Override", "OverrideOptions", "Overrides"]
