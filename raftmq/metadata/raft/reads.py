"""ReadIndex: what a leader must hear before it may call its state the newest.

Owns rounds of confirmation (Ongaro's thesis, 6.4). A read notes the commit index and the next
round; every AppendEntries carries the newest round, every answer echoes it. Once a majority
has echoed the read's round, no other leader can have committed anything before the read began.
Pure: the node sends and applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Read(NamedTuple):
    read_index: int  # must be applied before the read is served
    round: int  # must be echoed by a majority
    done: Callable[[bool], None]


class Reads:
    """Attributes:
    round: goes out with every AppendEntries; grows when reads are waiting.
    """

    def __init__(self, voter_count: int) -> None:
        self._voter_count = voter_count
        self.round = 0
        self._asked: list[Callable[[bool], None]] = []
        self._waiting: list[Read] = []
        self._echoed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._asked) + len(self._waiting)

    def begin(self, done: Callable[[bool], None]) -> None:
        """`done(True)` once the state is known to be new enough, `done(False)` if it never is."""
        self._asked.append(done)

    def open_round(self, commit_index: int) -> bool:
        """Give every read that was asked for since a round of its own; whether there were any."""
        if not self._asked:
            return False
        self.round += 1
        self._waiting += [Read(commit_index, self.round, done) for done in self._asked]
        self._asked = []
        return True

    def on_echo(self, peer: int, round_number: int) -> None:
        self._echoed[peer] = max(round_number, self._echoed.get(peer, 0))

    def serve(self, last_applied: int) -> None:
        """Finish every read that a majority has confirmed and that is applied."""
        if not self._waiting:
            return
        confirmed = self._confirmed_round()
        waiting, self._waiting = self._waiting, []
        for read in waiting:
            if read.round <= confirmed and read.read_index <= last_applied:
                read.done(True)
            else:
                self._waiting.append(read)

    def _confirmed_round(self) -> int:
        """The newest round that a majority has echoed; the leader itself echoes at once."""
        echoed = sorted([self.round, *self._echoed.values()], reverse=True)
        majority = self._voter_count // 2 + 1
        return echoed[majority - 1] if len(echoed) >= majority else 0

    def fail_all(self) -> None:
        """This node leads no more: what it heard proves nothing now."""
        waiting = [*self._asked, *(read.done for read in self._waiting)]
        self._asked, self._waiting, self._echoed = [], [], {}
        for done in waiting:
            done(False)
