"""What a member of a group may be doing."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """OUTSIDE: nothing. JOINING, SYNCING: the group deals anew; it waits for the others, or for
    the plan. STABLE: it reads. REVOKING: it reads, and the program finishes what it gives up.
    FENCED: it is at its end.
    """

    OUTSIDE = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    REVOKING = auto()
    LEAVING = auto()
    FENCED = auto()
