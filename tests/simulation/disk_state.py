"""The loss model of the simulated disk: cached, durable and pending state of files and directories.

Owns the loss model. Every node has a cached side (what a reader sees), a durable side (what the
device surely holds) and the pending operations that lead from one to the other. A power cut keeps
the durable side and a random prefix of what is pending, file by file and directory by directory,
so it is never kinder than a kernel may be. Knows no paths, errors or counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES = 512
Item = TypeVar("Item")


class Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if self.data and self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def appends_to(self, content: bytearray) -> bool:
        return self.position == len(content)

    def torn(self, random: Random) -> Write:
        """What is left when the power fails while this is on its way to the device."""
        end = self.position + random.randrange(len(self.data) + 1)
        if random.random() < 0.5:
            end = max(self.position, end - end % SECTOR_BYTES)
        return Write(self.position, self.data[: end - self.position])


class Truncate(NamedTuple):
    length: int

    def apply(self, content: bytearray) -> None:
        resize(content, self.length)

    def appends_to(self, _content: bytearray) -> bool:
        return False

    def torn(self, _random: Random) -> Truncate:
        return self


class FileState:
    """The bytes of one file, under any name."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.cached = bytearray(content)
        self.durable = bytearray(content)
        self.owes_error = False
        self._pending: list[Write | Truncate] = []

    def change(self, change: Write | Truncate) -> None:
        change.apply(self.cached)
        self._pending.append(change)

    def sync(self) -> None:
        for change in self._pending:
            change.apply(self.durable)
        self._pending.clear()

    sync_all = sync

    def lose_dirty(self) -> None:
        """A failed sync: the kernel calls the pages clean, and the device never saw them.

        Sizes are not in pages: a truncation is still on its way.
        """
        self._pending = [change for change in self._pending if isinstance(change, Truncate)]

    def lose_dirty_unnoticed(self) -> None:
        """The same in a sync of everything: the next sync of this file fails, once."""
        self.owes_error = any(isinstance(change, Write) for change in self._pending)
        self.lose_dirty()

    def forget_errors(self) -> None:
        """What an inode does that leaves the cache."""
        self.owes_error = False

    def evict(self) -> None:
        """Clean pages are read from the device again. The size is the inode's, and stays."""
        size = len(self.cached)
        self.cached = bytearray(self.durable)
        for change in self._pending:
            change.apply(self.cached)
        resize(self.cached, size)

    def after_power_cut(self, random: Random, *, reorder: bool) -> FileState:
        kept = bytearray(self.durable)
        solid = len(kept)
        for change in self._surviving(random):
            appended = change.appends_to(kept)
            change.apply(kept)
            solid = solid if appended else len(kept)
        if reorder:
            _lose_sectors(kept, solid, random)
        return FileState(kept)

    def _surviving(self, random: Random) -> list[Write | Truncate]:
        surviving = random_prefix(self._pending, random)
        if surviving and random.random() < 0.5:
            surviving[-1] = surviving[-1].torn(random)
        return surviving


class Link(NamedTuple):
    name: str
    node: Node

    def apply(self, names: dict[str, Node]) -> None:
        names[self.name] = self.node


class Unlink(NamedTuple):
    name: str

    def apply(self, names: dict[str, Node]) -> None:
        del names[self.name]


class Rename(NamedTuple):
    source: str
    target: str

    def apply(self, names: dict[str, Node]) -> None:
        names[self.target] = names.pop(self.source)


class DirectoryState:
    """Names, and what they name. A rename is one step: no crash shows half of it."""

    def __init__(self, names: dict[str, Node] | None = None) -> None:
        self.names: dict[str, Node] = dict(names or {})
        self._durable = dict(self.names)
        self._pending: list[Link | Unlink | Rename] = []

    def change(self, change: Link | Unlink | Rename) -> None:
        change.apply(self.names)
        self._pending.append(change)

    def sync(self) -> None:
        self._durable = dict(self.names)
        self._pending.clear()

    def sync_all(self) -> None:
        """This directory and everything below it."""
        self.sync()
        for node in self.names.values():
            node.sync_all()

    def lose_dirty_unnoticed(self) -> None:
        """Names outlive a failed write-back: they are in the journal, not in the pages."""
        for node in self.names.values():
            node.lose_dirty_unnoticed()

    def forget_errors(self) -> None:
        for node in self.names.values():
            node.forget_errors()

    def after_power_cut(self, random: Random, *, reorder: bool) -> DirectoryState:
        names = dict(self._durable)
        for change in random_prefix(self._pending, random):
            change.apply(names)
        return DirectoryState(
            {name: names[name].after_power_cut(random, reorder=reorder) for name in sorted(names)}
        )


Node = FileState | DirectoryState


def resize(content: bytearray, length: int) -> None:
    del content[length:]
    content.extend(bytes(length - len(content)))


def random_prefix(items: list[Item], random: Random) -> list[Item]:
    """Nothing, everything and something in between are each likely: the ends hide the bugs."""
    length = random.choice((0, len(items), random.randrange(len(items) + 1)))
    return items[:length]


def _lose_sectors(content: bytearray, start: int, random: Random) -> None:
    """Appended sectors reach the device in any order; the ones that did not read as zeros."""
    while start < len(content):
        end = min(start - start % SECTOR_BYTES + SECTOR_BYTES, len(content))
        if random.random() < 0.5:
            content[start:end] = bytes(end - start)
        start = end
