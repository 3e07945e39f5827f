"""Damage to the real files of a node that was killed: always noticed, never more than is borne."""

from __future__ import annotations

import shutil
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest
import trio
from trio.testing import MockClock

from jepsen_like.nemesis import directories, log_places, wounds
from jepsen_like.nemesis.damage import BitFlip, JournalDamage, Truncate
from jepsen_like.nemesis.old_directory import OldDirectory, registered_epoch
from jepsen_like.nemesis.quorum_places import journal_places
from jepsen_like.nemesis.wounds import Place
from raftmq.broker.meta import DirectoryMeta
from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.background import REFUSED_NAME
from tests.jepsen_like.nemesis.scripted_machines import ScriptedMachines, scene
from tests.jepsen_like.nemesis.stopped_nodes import (
    LOGS,
    check_voter,
    kill_node,
    open_again,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


SMALL_FILES = ("index", "time index", "aborted index", "producers", "leader epochs", "checkpoint")


class Site:
    """Machines whose node 1 was killed, once for each seed."""

    def __init__(self, pristine: Path, folder: Path) -> None:
        self._pristine, self._folder = pristine, folder
        self.machines = ScriptedMachines(3, folder)

    @property
    def root(self) -> Path:
        return self._folder / "n1"

    def renew(self) -> None:
        if self.root.exists():
            shutil.rmtree(self.root)
        shutil.copytree(self._pristine, self.root)
        self.machines = ScriptedMachines(3, self._folder)
        self.machines.preferred = frozenset((name.split("-")[0], 0) for name in LOGS)

    def fault(self, kind: type[Any], name: str, seed: int = 0, **params: Any) -> Any:
        self.renew()
        return kind(scene(self.machines, 1, kind=name, seed=seed, **params))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once, as it is synced to a real disk; each site copies it."""
    root = tmp_path_factory.mktemp("killed") / "pristine"
    trio.run(kill_node, root, clock=MockClock(autojump_threshold=0))
    return root


@pytest.fixture
def site(pristine: Path, tmp_path: Path, autojump_clock: MockClock) -> Site:
    return Site(pristine, tmp_path)


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


async def test_a_killed_node_has_everything(site: Site) -> None:
    """Nothing was damaged: all records are there, and the voter starts."""
    site.renew()
    opened = await open_again(site.root)
    assert opened.damaged == []
    assert opened.values == {topic: written(topic) for topic in LOGS}
    check_voter(site.root)


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_flipped_bit_in_a_segment_is_not_looked_for(site: Site, is_running: bool) -> None:
    """Below the recovery point, which stays: a start serves the rest, and no wrong bytes. In the
    end the node leads what was hit, and it is read.
    """
    hit: Counter[str] = Counter()
    for seed in range(8):
        fault = site.fault(BitFlip, "bitflip", seed, file="segment", logs=1, is_running=is_running)
        before = content(site.root)
        told = fault.begin()
        assert site.machines.running == ({1, 2, 3} if is_running else {2, 3})
        changed = [name for name, data in content(site.root).items() if data != before[name]]
        [where] = told["damaged"]
        [name] = changed
        assert where.startswith(f"{name} at ")
        topic = name.split("/")[1]
        hit[topic] += 1
        assert fault.end() == {"read": "all", "repaired": [False]}
        assert site.machines.calls == ([] if is_running else ["kill 1", "start 1"]) + ["read 1"]
    assert len(hit) > 1


async def test_what_the_node_has_again_is_told(site: Site) -> None:
    """The very bytes; what stays as it is stays, for others to judge. Partitions that the node
    would not lead are not hit.
    """
    fault = site.fault(BitFlip, "bitflip", file="segment", logs=1000, is_running=True)
    site.machines.preferred = frozenset({("long", 0), ("short", 0)})
    before = content(site.root)

    def mend(partitions: Sequence[tuple[str, int]]) -> list[str]:
        assert partitions == [("long", 0), ("short", 0)]
        for name, data in before.items():
            if "short" in name:
                (site.root / name).write_bytes(data)
        return ["long-0: not read"]

    site.machines.on_read = mend
    assert len(fault.begin()["damaged"]) == 2
    told = fault.end()
    assert (told["read"], sorted(told["repaired"])) == (["long-0: not read"], [False, True])
    assert content(site.root) != before


async def test_a_power_cut_before_the_node_has_looked_hides_nothing(site: Site) -> None:
    """What was acknowledged is not taken for what was never synced, wherever the end is gone."""
    for seed in range(4):
        fault = site.fault(Truncate, "truncate", seed, file="segment", logs=1000)
        fault.begin()
        assert (await open_again(site.root, power_cuts=1)).damaged == list(LOGS)


async def test_all_logs_of_a_node_can_be_damaged_at_once(site: Site) -> None:
    """One disk, and nothing on it can be relied on."""
    fault = site.fault(Truncate, "truncate", file="segment", logs=1000)
    assert len((fault.begin() | fault.end())["damaged"]) == len(LOGS)
    assert (await open_again(site.root)).damaged == list(LOGS)


@pytest.mark.parametrize("file", SMALL_FILES)
@pytest.mark.parametrize("kind", [BitFlip, Truncate])
async def test_what_can_be_had_from_the_records_is_borne(
    site: Site, kind: type[Any], file: str
) -> None:
    """Indexes, snapshots, epochs and checkpoints, flipped or cut: all records are there."""
    name = "bitflip" if kind is BitFlip else "truncate"
    for seed in range(2):
        fault = site.fault(kind, name, seed, file=file)
        told = fault.begin() | fault.end()
        assert told["damaged"]
        opened = await open_again(site.root)
        assert opened.damaged == []
        assert opened.values == {topic: written(topic) for topic in LOGS}


async def test_a_segment_is_cut_below_its_recovery_point(site: Site) -> None:
    """What is missing was durable: the node knows that it is."""
    hit: Counter[str] = Counter()
    for seed in range(6):
        fault = site.fault(Truncate, "truncate", seed, file="segment", logs=1)
        told = fault.begin() | fault.end()
        assert told["damaged"][0].startswith("topics/")
        opened = await open_again(site.root)
        [topic] = opened.damaged
        hit[topic] += 1
        values = opened.values[topic]
        assert values == written(topic)[: len(values)]
    assert len(hit) > 1


async def test_the_last_batch_is_never_flipped(site: Site) -> None:
    """Wrong, it would look like a torn write."""
    site.renew()
    for folder in log_places.partition_folders(site.root):
        batches = log_places.batches_of(folder)
        assert batches[-1].is_last
        found = log_places.flippable(folder)
        assert batches[-1] not in found
        assert all(batch.end_offset <= batch.recovery_point for batch in found)


async def test_a_torn_end_is_no_place(site: Site) -> None:
    """The node died in a write: the whole batch before it is the last one."""
    site.renew()
    [folder] = [each for each in log_places.partition_folders(site.root) if "late" in str(each)]
    batches = log_places.batches_of(folder)
    with batches[-1].place.path.open("ab") as file:
        file.write(b"torn" * 5)
    assert log_places.batches_of(folder) == batches


async def test_an_empty_disk_cannot_be_damaged(tmp_path: Path) -> None:
    """A node that has written nothing: stopped and started, and said so."""
    machines = ScriptedMachines(3, tmp_path)
    (tmp_path / "n1").mkdir()
    for kind, name in (
        (BitFlip, "bitflip"),
        (Truncate, "truncate"),
        (JournalDamage, "journal-damage"),
    ):
        fault = kind(scene(machines, 1, kind=name, seed=3))
        assert fault.begin() == {"damaged": []}
        fault.end()
    assert machines.is_well()


# -- the quorum --------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["journal", "snapshot"])
async def test_a_voter_does_not_start_on_damage_and_gets_an_empty_disk(
    site: Site, file: str
) -> None:
    """Any batch but the last, any byte of the snapshot: the voter ends at once."""
    for seed in range(5):
        fault = site.fault(JournalDamage, "journal-damage", seed, file=file)
        machines = site.machines
        told = fault.begin()
        assert f".{file} at " in told["damaged"][0]
        with pytest.raises(CorruptJournal):
            check_voter(site.root)

        def refuse(node: int, machines: ScriptedMachines = machines) -> None:
            if any(site.root.iterdir()):
                machines.end_by_itself(node, 78)

        machines.on_start = refuse
        assert fault.end() == {"refused": True, "emptied": True}
        assert not any(site.root.iterdir())
        assert machines.is_well()


async def test_a_voter_that_starts_on_damage_is_told(site: Site) -> None:
    """It should not have: the history says so, and its disk stays as it is."""
    fault = site.fault(JournalDamage, "journal-damage", file="journal")
    fault.begin()
    assert fault.end() == {"refused": False}
    assert any(site.root.iterdir())


async def test_the_last_batch_of_a_journal_is_no_place(site: Site) -> None:
    """It ends where the last place begins to be missing."""
    site.renew()
    places = journal_places(site.root)
    assert places
    assert places[-1].end < places[-1].path.stat().st_size


# -- an older directory ------------------------------------------------------------------------


class Registering(ScriptedMachines):
    """Each start but a refused one is registered anew, in the directory.

    Attributes:
        refuses: how an older copy is answered: not at all, at once, or when it is up.
    """

    def __init__(self, root: Path, refuses: str = "") -> None:
        super().__init__(3, root)
        self.refuses, self._epoch = refuses, 0
        self.on_start = self._register

    def _register(self, node: int) -> None:
        directory = self.data_directory(node)
        meta = directory / "meta.json"
        is_old = meta.exists() and registered_epoch(directory) < self._epoch
        if is_old and self.refuses:
            (directory / "quorum" / REFUSED_NAME).write_text("an older copy")
            if self.refuses == "at once":
                self.end_by_itself(node)
            return
        self._epoch += 1
        said = DirectoryMeta(
            cluster_id="c", node_id=1, directory_id=UUID(int=1), broker_epoch=self._epoch
        )
        meta.write_bytes(msgspec.json.encode(said))


def registering(site: Site, refuses: str = "") -> Registering:
    site.renew()
    machines = Registering(site.root.parent, refuses)
    machines.kill(1)
    machines.start(1)
    machines.calls.clear()
    return machines


async def test_an_older_copy_is_put_back(site: Site) -> None:
    """Taken before a start, put back after: everything is as it was then, and it is accepted."""
    machines = registering(site)
    before = content(site.root)
    fault = OldDirectory(scene(machines, 1, kind="old-directory"))
    assert fault.begin() == {"registered_anew": True}
    assert content(site.root) != before
    (site.root / "topics" / "new").mkdir()
    machines.on_start = lambda node: None
    assert len(list(site.root.parent.glob("jepsen-like-copy-*"))) == 1  # it goes with the cluster
    assert fault.end() == {"put_back": True, "refused": False}
    assert not list(site.root.parent.glob("jepsen-like-copy-*"))
    assert content(site.root) == before
    assert not (site.root / "topics" / "new").exists()
    assert machines.calls == ["kill 1", "start 1", "kill 1", "start 1"]


@pytest.mark.parametrize("refuses", ["at once", "when it is up"])
async def test_a_refused_copy_makes_room_for_an_empty_disk(site: Site, refuses: str) -> None:
    """Its peers know better: the voter ends, or stays and says so in a file."""
    machines = registering(site, refuses)
    fault = OldDirectory(scene(machines, 1, kind="old-directory"))
    fault.begin()
    assert fault.end() == {"put_back": True, "refused": True, "emptied": True}
    assert [path.name for path in site.root.iterdir()] == ["meta.json"]
    assert machines.is_well()


async def test_without_a_new_registration_nothing_is_put_back(site: Site) -> None:
    """The copy would be from the same registration, which nobody can tell from a crash."""
    machines = registering(site)
    machines.on_start = lambda node: None
    fault = OldDirectory(scene(machines, 1, kind="old-directory"))
    assert fault.begin() == {"registered_anew": False}
    before = content(site.root)
    assert fault.end() == {"put_back": False}
    assert content(site.root) == before
    assert machines.is_well()


# -- files -------------------------------------------------------------------------------------


def test_what_the_file_system_needs_stays(tmp_path: Path) -> None:
    """An emptied disk keeps `lost+found`, and a copy has none."""
    source, target = tmp_path / "a", tmp_path / "b"
    for folder in (source / "lost+found", source / "topics" / "x", target):
        folder.mkdir(parents=True)
    (source / "topics" / "x" / "data").write_bytes(b"1")
    (source / "meta.json").write_bytes(b"{}")
    directories.copy(source, target)
    assert content(target) == {"meta.json": b"{}", "topics/x/data": b"1"}
    assert not (target / "lost+found").exists()
    directories.empty(source)
    assert [path.name for path in source.iterdir()] == ["lost+found"]


def test_as_many_bits_flip_as_asked_and_only_where_they_may(tmp_path: Path) -> None:
    """Three bits of sixteen bytes, four of which are spared."""
    path = tmp_path / "file"
    for seed in range(50):
        path.write_bytes(bytes(range(40)))
        place = Place(path, 8, 24)
        flip = wounds.flip_bits(place, 3, Random(seed), spared=range(4, 8))
        data = path.read_bytes()
        changed = [new ^ old for new, old in zip(data, range(40), strict=True)]
        assert sum(byte.bit_count() for byte in changed) == 3
        assert not any(changed[:8] + changed[12:16] + changed[24:])
        assert (flip.before, flip.after) == (bytes(range(8, 24)), data[8:24])
