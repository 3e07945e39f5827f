"""`StateMachine`, the interface between Raft and the metadata: apply, snapshot, install.

Owns the protocol only. `raft` knows nothing else of the metadata, so that its simulations can use a
state machine of a few lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class StateMachine(Protocol):
    """All methods run on the event loop, except `read_picture` and the iteration of a snapshot."""

    def apply(self, index: int, command: bytes) -> object:
        """The command's result; an invalid command gives a result, too.

        Raises:
            NewerCommand: only a newer version knows what it means; this node must stop.
        """

    def picture(self) -> Callable[[], Iterator[bytes]]:
        """A snapshot of the state, in O(1); calling it, in a worker thread, yields its slices."""

    def read_picture(self, slices: Iterable[bytes]) -> object:
        """In a worker thread: decode a snapshot for `install`.

        Raises:
            CorruptJournal: the slices are no snapshot of this state machine.
        """

    def install(self, index: int, decoded: object) -> None:
        """Replace the state by a decoded snapshot; O(1)."""
