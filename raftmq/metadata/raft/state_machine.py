"""What the quorum replicates: bytes, to something that applies them.

Owns the protocol only. `raft` knows nothing else of the metadata, so that its simulations can run
on a state machine of a few lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class StateMachine(Protocol):
    """Everything but `read_picture` and the picture's own iteration runs on the loop."""

    def apply(self, index: int, command: bytes) -> object:
        """The command's answer. What is wrong with a command is an answer, too.

        Raises:
            NewerCommand: only a newer version knows what it means; this node must stop.
        """

    def picture(self) -> Callable[[], Iterator[bytes]]:
        """The state now, cheaply held; calling it, in a worker thread, yields it in slices."""

    def read_picture(self, slices: Iterable[bytes]) -> object:
        """In a worker thread: what `install` needs, decoded.

        Raises:
            CorruptJournal: the slices are none of ours.
        """

    def install(self, index: int, decoded: object) -> None:
        """Become what a picture showed; O(1)."""
