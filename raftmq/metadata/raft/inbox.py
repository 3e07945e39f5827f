"""Messages that have arrived from other voters and that the driver has not taken yet.

Owns their order and each connection's share of the memory. Holds nothing of a connection that has
been dropped: whoever takes messages gets those of live connections only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.metadata.raft.messages import AnyMessage
    from raftmq.metadata.raft.transport import Link

SHARE_BYTES_MAX = 8 << 20  # of one connection, give or take the last read


class Inbox:
    def __init__(self, share_bytes_max: int) -> None:
        self._share_bytes_max = share_bytes_max
        self._messages: deque[tuple[Link, AnyMessage]] = deque()
        self._shares: dict[Link, int] = {}
        self._room = trio.lowlevel.ParkingLot()

    def put(self, link: Link, messages: Sequence[AnyMessage], size_bytes: int) -> None:
        self._messages.extend((link, message) for message in messages)
        self._shares[link] = self._shares.get(link, 0) + size_bytes

    async def wait_room(self, link: Link) -> None:
        """Return when the share of `link` is not used up; until then nobody reads for it."""
        while self._shares.get(link, 0) >= self._share_bytes_max:
            await self._room.park()

    def take(self) -> list[tuple[int, AnyMessage]]:
        """Everything, with the voters who sent it, in the order of arrival."""
        taken = [(link.peer, message) for link, message in self._messages]
        self._messages.clear()
        self._shares.clear()
        self._room.unpark_all()
        return taken

    def drop(self, link: Link) -> None:
        """What `link` brought is forgotten."""
        if self._shares.pop(link, None) is not None:
            self._messages = deque(item for item in self._messages if item[0] is not link)
            self._room.unpark_all()
