"""Disk corruption on a stopped node: flipped bits in logs and journal, truncated files.

Only for one node at a time, and while all others hold everything (the nemesis sees to that). A
broker must detect it, answer nothing wrong, and fetch the rest from the others again. A voter must
not start with a damaged journal; then it gets an empty directory, as an operator would do.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.nemesis import log_places, quorum_places, wounds
from jepsen_like.nemesis.directories import empty
from jepsen_like.nemesis.fault import comes_up, start_missing
from jepsen_like.nemesis.wounds import Place
from raftmq.broker.meta import QUORUM_FOLDER
from raftmq.metadata.raft.background import REFUSED_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from jepsen_like.nemesis.fault import Scene, Told
    from jepsen_like.nemesis.log_places import BatchPlace
    from jepsen_like.nemesis.wounds import Flip

SEGMENT = "segment"
SECOND_THOUGHTS_SECONDS = 4.0  # others may reject a node only after it has talked to them
READ_SECONDS = 60.0  # for the node to lead and read all damaged partitions, and to repair them


class _Stopped:
    """A node that is stopped, damaged, and started.

    Attributes:
        scene: with one node.
        root: its data directory.
    """

    def __init__(self, scene: Scene) -> None:
        assert len(scene.nodes) == 1, f"one disk at a time, not those of {scene.nodes}"
        self.scene = scene
        self.node = scene.nodes[0]
        self.root: Path = scene.machines.data_directory(self.node)
        self._has_begun = False

    def begin(self) -> Told:
        self._has_begun = True
        self.kill()
        return self.damage()

    def end(self) -> Told:
        has_begun, self._has_begun = self._has_begun, False
        return self.recover() if has_begun else {}

    def damage(self) -> Told:
        raise NotImplementedError

    def recover(self) -> Told:
        start_missing(self.scene.machines, self.scene.nodes)
        return {}

    def kill(self) -> None:
        if self.scene.machines.is_running(self.node):
            self.scene.machines.kill(self.node)

    def folders(self) -> list[Path]:
        """Of partitions, in an order drawn by chance."""
        found = log_places.partition_folders(self.root)
        return self.scene.random.sample(found, len(found))

    def small_file(self) -> Path | None:
        found = log_places.small_files(self.root, self.scene.params["file"])
        return self.scene.random.choice(found) if found else None


class _Rot(NamedTuple):
    """`batch` of a log that was whole everywhere when it was hit."""

    folder: Path
    batch: BatchPlace
    flip: Flip

    @property
    def partition(self) -> tuple[str, int]:
        topic, _, _ = self.folder.parent.name.rpartition("-")
        return topic, int(self.folder.name.removeprefix("Partition-"))

    def is_repaired(self) -> bool:
        """The batch may be at another position in the log by now."""
        there = (each for each in log_places.batches_of(self.folder))
        same = (each for each in there if each.base_offset == self.batch.base_offset)
        return any(wounds.read(each.place) == self.flip.before for each in same)


class BitFlip(_Stopped):
    """Bits in segments below the recovery points, of a running or a stopped node: no recovery reads
    there. In the end the node leads the damaged partitions, and all of them are read: readers must
    get what was written, and the node must repair itself from the others. The damage is not undone:
    what stays is judged with all other logs.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._rotten: list[_Rot] = []
        self._partitions: frozenset[tuple[str, int]] = frozenset()

    def begin(self) -> Told:
        if self.scene.params["file"] == SEGMENT:
            self._partitions = self.scene.machines.preferred_by(self.node)
            if self.scene.params.get("is_running"):
                self._has_begun = True
                return self.damage()
        return super().begin()

    def damage(self) -> Told:
        path = None if self.scene.params["file"] == SEGMENT else self.small_file()
        if path is not None:
            flip = self._flip(Place(path, 0, path.stat().st_size))
            return {"damaged": [flip.told(self.root)]}
        for folder, batch in self._some_batches():
            flip = self._flip(batch.place, spared=log_places.UNCHECKED_BYTES)
            self._rotten.append(_Rot(folder, batch, flip))
        return {"damaged": [rot.flip.told(self.root) for rot in self._rotten]}

    def _some_batches(self) -> list[tuple[Path, BatchPlace]]:
        """Of so many logs as were asked for, one each."""
        found = (
            (each, log_places.flippable(each)) for each in self.folders() if self._is_led(each)
        )
        there = ((each, self.scene.random.choice(batches)) for each, batches in found if batches)
        return list(islice(there, self.scene.params["logs"]))

    def _is_led(self, folder: Path) -> bool:
        topic, _, _ = folder.parent.name.rpartition("-")
        return (topic, int(folder.name.removeprefix("Partition-"))) in self._partitions

    def _flip(self, place: Place, *, spared: range = range(0)) -> Flip:
        random, bits = self.scene.random, self.scene.params["bits"]
        return wounds.flip_bits(place, bits, random, spared=spared)

    def recover(self) -> Told:
        told = super().recover()
        if not self._rotten:
            return told
        machines, partitions = self.scene.machines, sorted(rot.partition for rot in self._rotten)
        comes_up(machines, self.node)
        problems = machines.read_through(self.node, partitions, READ_SECONDS)
        repaired = [rot.is_repaired() for rot in self._rotten]
        return {**told, "read": problems or "all", "repaired": repaired}


class Truncate(_Stopped):
    """Segments lose what they held below their recovery point, or a small file some of its end."""

    def damage(self) -> Told:
        path = None if self.scene.params["file"] == SEGMENT else self.small_file()
        if path is not None:
            return {"damaged": [self._cut(Place(path, 0, path.stat().st_size))]}
        found = map(log_places.shortened, self.folders())
        there = (place for place in found if place is not None)
        return {"damaged": list(map(self._cut, islice(there, self.scene.params["logs"])))}

    def _cut(self, place: Place) -> str:
        size = self.scene.random.randrange(place.begin, place.end)
        lost = place.path.stat().st_size - size
        wounds.truncate(place.path, size)
        return f"{place.path.relative_to(self.root)}: the last {lost} bytes"


class JournalDamage(_Stopped):
    """The voter's promises (votes, entries) cannot be trusted any more: it must not start."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_damaged = False

    def damage(self) -> Told:
        journal = quorum_places.journal_places(self.root)
        snapshot = quorum_places.snapshot_places(self.root)
        places = (self.scene.params["file"] == "snapshot" and snapshot) or journal
        if not places:
            return {"damaged": []}
        place = self.scene.random.choice(places)
        flip = wounds.flip_bits(place, self.scene.params["bits"], self.scene.random)
        self._is_damaged = True
        return {"damaged": [flip.told(self.root)]}

    def recover(self) -> Told:
        super().recover()
        return replace_disk_unless_up(self.scene) if self._is_damaged else {}


def replace_disk_unless_up(scene: Scene) -> Told:
    """Wait for a node that was started, and give it an empty directory if it is not there to
    stay: others may refuse it only once it has talked to them."""
    machines, [node] = scene.machines, scene.nodes
    if comes_up(machines, node):
        scene.sleep(SECOND_THOUGHTS_SECONDS)
        if machines.has_ended(node) is None and not is_refused(machines.data_directory(node)):
            return {"refused": False}
    if machines.is_running(node):
        machines.kill(node)
    empty(machines.data_directory(node))
    machines.start(node)
    return {"refused": True, "emptied": True}


def is_refused(root: Path) -> bool:
    """Whether other voters have said of this directory that it must not come back."""
    return (root / QUORUM_FOLDER / REFUSED_NAME).exists()
