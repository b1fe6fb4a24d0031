"""The patience of a call: how long it waits for its servers, counted in looks and not on the wall.

A wait is cut into looks. A look costs what it took, and at most its own length, however long the scheduler kept the
process from the processor. So a process that gets no processor does not take its own slowness for a dead server: a
server has failed when the process has looked for its answer for the whole deadline, and nothing was there.

Before a command is written, its time is not the server's: another caller has the connection, or it is being opened.
While that makes progress (a step of an opening, a reply to another caller), a call waits on: for each connection at
most `LONGEST`, or the deadline if that is longer.
"""

from __future__ import annotations

from typing import Final

LOOKS: Final = 20.0  # in a deadline: one stalled look costs a twentieth of it
LONGEST: Final = 1.0  # seconds of looks for one connection: an opening with TLS over a distant network fits
PART: Final = 0.8  # of the patience, for one of several servers: it leaves some for the others, and a server is used
# whose round trip takes less than this part of the deadline
_LEAST: Final = 0.001  # seconds of a look: the system's timers are no finer


class Patience:
    """The deadline of one store in looks. It knows nothing about a call."""

    __slots__ = ("deadline", "longest", "look", "looks")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.look = max(deadline / LOOKS, _LEAST)  # seconds
        self.looks = deadline / self.look
        self.longest = max(LONGEST, deadline) / self.look  # looks

    def cost(self, seconds: float, *, most: float = 1.0) -> float:
        """Return the looks that a wait of so many seconds costs: `most`, if it took longer."""
        return min(seconds / self.look, most)
