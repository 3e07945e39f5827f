"""How fast this broker copies replicas that are added: bytes a second, over all of its copy lanes.

Owns when the next request of any lane may leave, and how much it may ask for. Lanes take turns in
the order in which they ask. Pure: times are of the caller's clock, and nobody is put to sleep.
"""

from __future__ import annotations

import math

CHUNK_SECONDS = 0.1  # of the rate, in one request: several lanes have their turns within a second
# Less would be a round trip for each batch of a usual producer.
CHUNK_BYTES_MIN = 64 << 10
CHUNK_BYTES_MAX = 2 << 20  # appended in one step, which holds up other tasks (decision 0016)
# Of what is allowed: at a lower one, a lane waits for long for turns that others do not use.
RATE_MIN = int(CHUNK_BYTES_MIN / CHUNK_SECONDS)


class CopyBudget:
    """Within any `seconds` lanes get `seconds` times the rate and two chunks at most, and what a
    first batch that is larger than a chunk has beyond it: the turns after it come later. A lane
    waits for what was fetched before, and for one chunk of each other lane that has its turn.

    Attributes:
        chunk_bytes: how much one request may ask for.
    """

    def __init__(self, bytes_per_second: int) -> None:
        """0: no limit."""
        self._rate = bytes_per_second or math.inf
        wanted = min(self._rate * CHUNK_SECONDS, CHUNK_BYTES_MAX)
        self.chunk_bytes = max(CHUNK_BYTES_MIN, int(wanted))
        self._seconds = self.chunk_bytes / self._rate  # of one chunk
        self._next_at = -math.inf  # what the rate allows until then is given out

    def take_turn(self, now: float) -> float:
        """When a request for one chunk may leave; to be settled by what it has brought."""
        # What was not used is kept for one chunk, and no longer.
        at = max(self._next_at, now - self._seconds)
        self._next_at = at + self._seconds
        return at

    def settle(self, bytes_fetched: int) -> None:
        """The answer of one turn is there; 0: there is none."""
        self._next_at += (bytes_fetched - self.chunk_bytes) / self._rate
