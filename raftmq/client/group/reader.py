"""What reads partitions for a member of a group: the consumer, as its membership sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from anyio import Event

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.committing import Position
    from raftmq.client.group.effects import Cause


class Reader(Protocol):
    """Partitions are pairs of a topic's name and a number."""

    def read_topics(self, topics: Sequence[str], watched: Sequence[str]) -> None:
        """Of these, partitions are dealt out; of those that are watched the number is needed."""

    def assign(self, committed: Mapping[Key, Position], keys: Iterable[Key]) -> None:
        """Read these, too, from where they are committed, but hand out nothing of them yet."""

    def begin(self, committed: Mapping[Key, Position]) -> None:
        """What is read already is read from there."""

    def hand_out(self, keys: Iterable[Key]) -> None: ...

    def hold_back(self, keys: Iterable[Key]) -> None:
        """Hand out nothing more of these."""

    def release(self, keys: Iterable[Key], cause: Cause) -> None:
        """Somebody else reads them. `cause`: if they are lost, why."""

    def outdated(self) -> list[Key]:
        """What was read of a topic that was deleted, where there is another one of that name."""

    async def wait_finished(self, keys: Collection[Key]) -> None:
        """Until the program has nothing of these in hand."""

    @property
    def finished(self) -> Event:
        """Set as soon as something is finished, or passed over, from now on."""

    @property
    def passed(self) -> Event:
        """Set as soon as reading passes over what is no record from now on."""

    def done(
        self, keys: Iterable[Key] | None = None, *, is_all: bool = False
    ) -> dict[Key, Position]:
        """How far partitions are done, all or these; with `is_all`, what is in hand is done."""

    @property
    def begun(self) -> Event:
        """Set as soon as another beginning is found from now on."""

    def beginnings(self) -> dict[Key, Position]:
        """Of partitions that were begun where nobody else may begin later."""

    def drop_work(self) -> None:
        """The program works on nothing any more, finished or not."""

    def on_problem(self) -> None:
        """Whoever waits for records is told what is wrong."""
