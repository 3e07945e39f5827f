"""One simulated broker over all its processes: machine, disk, directory; crash and restart.

What survives a process is in `directory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.replication.disk import Directory, ReplicaLog
from tests.simulation.replication.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from tests.simulation.replication.world import World

FLUSH_SECONDS_MAX, SLOW_FLUSH_SECONDS_MAX = 0.01, 1.2


class Broker:
    """Attributes:
    process: the one that runs; None between two.
    is_paused: the process does nothing, and finds its `backlog` when it goes on.
    frozen_until, slow_until: of the disk's flushes, of the disk.
    copies: of the directory, as it was found by earlier processes.
    """

    def __init__(self, world: World, broker_id: int, chance: Random) -> None:
        self.world, self.broker_id, self.chance = world, broker_id, chance
        self.directory = Directory(chance.randbytes(16))
        self.boot_id = "boot 0"
        self.process: Process | None = None
        self.is_paused = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.frozen_until = self.slow_until = 0.0
        self.copies: list[Directory] = []
        self.began_at: dict[bytes, float] = {}  # processes, by incarnation

    def say(self, text: str) -> None:
        self.world.timeline.say(f"b{self.broker_id} {text}")

    # Life and death

    def start(self) -> None:
        if self.process is None:
            self.say(f"starts in {self.directory.directory_id.hex()[:4]}")
            self.frozen_until = self.slow_until = 0.0
            self.copies.append(self.directory.copy())
            self.process = Process(self)
            self.began_at[self.process.incarnation] = self.world.timeline.now
            self.process.start()
            self.world.quorum.tell(self)

    def kill(self) -> None:
        if self.process is not None:
            self.say("is killed")
            self.process.end()
            self.process, self.is_paused = None, False
            self.backlog.clear()

    def cut_power(self) -> None:
        self.kill()
        self.say("loses power")
        self.boot_id = f"boot {self.chance.randrange(1 << 30)}"
        for log in self.directory.logs.values():
            if log.lose_unsynced(self.chance):
                self._note_loss(log)

    def stop(self) -> None:
        """Cleanly: everything is synced, and the directory says so."""
        if self.process is not None:
            epoch = self.process.broker_epoch
            self.kill()
            self.say("has stopped")
            for log in self.directory.logs.values():
                log.synced, log.checkpoint = log.end, log.high_watermark
            self.directory.clean_epoch = epoch
            self.world.on_stopped(self)

    def put_back(self, copy: Directory) -> None:
        """An operator restores a directory of an earlier process."""
        self.kill()
        self.say("gets an old directory back")
        missing = self.directory.logs.keys() - copy.logs.keys()
        for key in missing:
            copy.logs[key] = ReplicaLog(is_fsync=self.directory.logs[key].is_fsync)
        for log in copy.logs.values():
            self._note_loss(log)
        self.directory = copy

    def damage(self, key: PartitionId, log: ReplicaLog) -> None:
        """Synced records are gone, and the next start will find that out."""
        self.kill()
        log.truncate(self.chance.randint(log.start, log.end))
        self.say(f"p{key.partition} is damaged, and ends at {log.end}")
        self._note_loss(log)
        self.directory.damaged.add(key)

    def _note_loss(self, log: ReplicaLog) -> None:
        registered = self.world.quorum.image.brokers[self.broker_id]
        log.lost_epoch, log.lost_at = registered.broker_epoch, self.world.timeline.now

    def has_confessed(self, log: ReplicaLog) -> bool:
        """A process that began after the loss is registered, and reviewed; not one of before,
        whose registration came late.
        """
        registered = self.world.quorum.image.brokers[self.broker_id]
        began_at = self.began_at.get(registered.incarnation, -1.0)
        return began_at >= log.lost_at and registered.pending == 0

    def pause(self, seconds: float) -> None:
        if self.process is not None and not self.is_paused:
            self.say(f"is paused for {seconds:.2f} s")
            self.is_paused = True
            self.world.timeline.after(seconds, self._resume, self.process)

    def resume(self) -> None:
        self._resume(self.process)

    def _resume(self, process: Process | None) -> None:
        """All that it missed, at once and in order."""
        if process is None or self.process is not process or not self.is_paused:
            return
        self.is_paused = False
        for act, arguments in self.backlog:
            self.world.timeline.after(0.0, process.turn, act, *arguments)
        self.backlog.clear()

    # The disk

    def log(self, key: PartitionId, durability: str) -> ReplicaLog:
        log = self.directory.logs.get(key)
        if log is None:
            log = self.directory.logs[key] = ReplicaLog(is_fsync=durability == "fsync")
        return log

    def flush_seconds(self, log: ReplicaLog) -> float:
        is_slow = self.world.timeline.now < self.slow_until or not log.is_fsync
        return self.chance.random() * (SLOW_FLUSH_SECONDS_MAX if is_slow else FLUSH_SECONDS_MAX)
