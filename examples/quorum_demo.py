"""See the metadata quorum work: three voters, a leader killed halfway, nothing lost.

    python examples/quorum_demo.py [--topics 1500] [--directory demo-data] [--keep]

Three processes form a quorum on 127.0.0.1. The leader creates a topic for each module of
Python's standard library and commits an offset for it, the module's number of lines. Halfway the
leader is killed with SIGKILL; another one is elected and goes on; the killed one comes back and
catches up. In the end all three must hold every topic and offset that was acknowledged. Exit code
1 if anything is missing or wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from random import sample
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftmq.errors import RaftmqError
from raftmq.metadata.commands import (
    NO_EPOCH,
    AssignSlot,
    CommitOffsets,
    CreateTopic,
    GroupCommits,
    PartitionId,
    RegisterBroker,
    StoredOffset,
    UnfenceBroker,
)
from raftmq.metadata.image import slot_of
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.metadata.commands import AnyCommand
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

VOTERS = (1, 2, 3)
BROKER = 1
GROUP = "line-counter"
IN_FLIGHT = 16
SECONDS_MAX = 120.0  # for the whole demonstration
NOT_STANDARD = {"site-packages", "dist-packages", "__pycache__"}

INTRODUCTION = """\
This shows the metadata quorum of raftmq: three processes, each with its own disk.

1. They elect a leader, which creates {:,} topics and commits an offset for
   each. A command counts as acknowledged once two of three have it fsynced.
2. Halfway the leader is killed with SIGKILL. The others elect a new one,
   which goes on. What was under way at that moment may be done or not:
   the new leader looks, and does the rest.
3. The killed one comes back and catches up.
4. All three must then hold every topic, and none that was acknowledged may
   be missing.
"""


class Module(NamedTuple):
    """One module of the standard library: the topic that it becomes, and its lines."""

    name: str
    lines: int

    @property
    def topic_id(self) -> bytes:
        return blake2b(self.name.encode(), digest_size=16).digest()


def modules(count_max: int) -> list[Module]:
    """The same ones in the same order every time, so that two leaders agree about them."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        Module(
            ".".join(path.relative_to(root).with_suffix("").parts),
            path.read_bytes().count(b"\n"),
        )
        for path in islice(_files(root), count_max)
    ]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in NOT_STANDARD:
            yield from _files(path)
        elif path.suffix == ".py":
            yield path


# -- a voter, a process of its own -------------------------------------------------------------


async def vote(settings: QuorumSettings[Address], work: list[Module]) -> None:
    """Be a voter until stdin is closed; while leading, do what is not done yet."""
    async with open_quorum(settings, TcpNetwork()) as quorum, trio.open_nursery() as nursery:
        nursery.start_soon(_report_completion, quorum, work)
        nursery.start_soon(_work_while_leading, quorum, work)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


async def _work_while_leading(quorum: MetadataQuorum, work: list[Module]) -> None:
    leadership = quorum.leadership
    while True:
        if leadership.is_leader:
            report(leader=True, term=leadership.term)
            try:
                image = await quorum.read_barrier()
                await _do_work(quorum, [m for m in work if not is_done(image, m)])
            except* RaftmqError as errors:
                report(paused=str(errors.exceptions[0]))
        leadership = await quorum.wait_leadership_changed(leadership)


async def _do_work(quorum: MetadataQuorum, todo: list[Module]) -> None:
    slot_epoch = await _prepare(quorum)
    rest = iter(todo)

    async def worker() -> None:
        for module in rest:
            for command in commands_for(module, slot_epoch):
                await quorum.propose(command)
            report(done=module.name)

    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(worker)


async def _prepare(quorum: MetadataQuorum) -> int:
    """One broker that may hold the topics, and coordinates the group; as often as you like."""
    await quorum.propose(RegisterBroker(BROKER, incarnation=bytes(16), directory_id=bytes(16)))
    epoch = quorum.image.brokers[BROKER].broker_epoch
    await quorum.propose(UnfenceBroker(BROKER, epoch))
    slot = slot_of(GROUP)
    if quorum.image.slots[slot].epoch == 0:
        await quorum.propose(AssignSlot(slot, expected_epoch=0, broker_id=BROKER))
    return quorum.image.slots[slot].epoch


def commands_for(module: Module, slot_epoch: int) -> tuple[AnyCommand, AnyCommand]:
    commit = StoredOffset(module.topic_id, 0, module.lines, NO_EPOCH)
    return (
        CreateTopic(module.topic_id, module.name, ((BROKER,),)),
        CommitOffsets(slot_of(GROUP), slot_epoch, (GroupCommits(GROUP, (commit,)),)),
    )


def is_done(image: MetadataImage, module: Module) -> bool:
    """Whether the topic is there with the right offset."""
    topic = image.topic_named(module.name)
    committed = image.offsets.get(GROUP, {}).get(PartitionId(module.topic_id, 0))
    return topic is not None and committed is not None and committed.offset == module.lines


async def _report_completion(quorum: MetadataQuorum, work: list[Module]) -> None:
    """Say it once this voter itself holds everything."""
    image = quorum.image
    while len(image.topics) < len(work) or not all(is_done(image, m) for m in work):
        image = await quorum.wait_changed(image.version)
    report(complete=len(image.topics))


def report(**what: object) -> None:
    """One line for the process that started this one."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- the one who starts them, kills one and checks ---------------------------------------------


class Report(NamedTuple):
    """What a voter said."""

    voter: int
    process: subprocess.Popen[str]
    said: dict[str, Any]


class Demo:
    """The course of events."""

    def __init__(self, root: Path, work: list[Module], console: Console) -> None:
        self.root, self.work, self.console = root, work, console
        self.ports = free_ports(len(VOTERS))
        self.voters: dict[int, subprocess.Popen[str]] = {}
        self.reports: Queue[Report] = Queue()
        self.acknowledged: set[str] = set()
        self.complete: dict[int, int] = {}
        self.leader = self.term = 0
        self.killed_at = self.seconds_without_leader = 0.0
        self.victim = 0

    def run(self) -> int:
        self.console.print(INTRODUCTION.format(len(self.work)), highlight=False, markup=False)
        started = time.perf_counter()
        try:
            for voter in VOTERS:
                self._start(voter)
            with _progress(self.console) as progress:
                task = progress.add_task("topics", total=len(self.work))
                while not self._is_over():
                    self._check_time(started)
                    self._take_reports()
                    self._maybe_kill()
                    progress.update(task, completed=len(self.acknowledged))
                progress.update(task, completed=min(self.complete.values()))
        finally:
            self._stop()
        return self._conclude(time.perf_counter() - started)

    def _is_over(self) -> bool:
        return bool(self.seconds_without_leader) and len(self.complete) == len(VOTERS)

    def _check_time(self, started: float) -> None:
        if time.perf_counter() - started > SECONDS_MAX:
            missing = [voter for voter in VOTERS if voter not in self.complete]
            sys.exit(f"not done after {SECONDS_MAX:.0f} s: voters {missing} miss something")

    def _start(self, voter: int) -> None:
        command = [sys.executable, __file__, "--topics", str(len(self.work))]
        command += ["--vote", str(voter), "--directory", str(self.root)]
        command += ["--ports", ",".join(map(str, self.ports))]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            text=True,
            start_new_session=True,  # Ctrl-C is for us: they end when their stdin does
        )
        self.voters[voter] = process
        self.complete.pop(voter, None)
        Thread(target=self._listen, args=(voter, process), daemon=True).start()

    def _listen(self, voter: int, process: subprocess.Popen[str]) -> None:
        """In a thread of its own: whatever the voter says, and at last that it has ended."""
        assert process.stdout is not None
        for line in process.stdout:
            self.reports.put(Report(voter, process, json.loads(line)))
        self.reports.put(Report(voter, process, {"ended": True}))

    def _take_reports(self) -> None:
        with suppress(Empty):
            self._take(self.reports.get(timeout=0.1))
            while True:
                self._take(self.reports.get_nowait())

    def _expect_death(self, voter: int) -> None:
        if voter != self.victim:
            sys.exit(f"voter {voter} ended by itself with {self.voters[voter].wait()}")

    def _take(self, what: Report) -> None:
        voter, process, report = what
        if "ended" in report:
            self._expect_death(voter)
        if "done" in report:
            self.acknowledged.add(report["done"])
        if "complete" in report and process is self.voters[voter]:  # not of the killed one
            self.complete[voter] = report["complete"]
        if "leader" in report and report["term"] > self.term:
            self.leader, self.term = voter, report["term"]
            if self.killed_at and not self.seconds_without_leader:
                self.seconds_without_leader = time.perf_counter() - self.killed_at
                self._start(self.victim)  # the killed one comes back

    def _maybe_kill(self) -> None:
        if self.victim or not self.leader or len(self.acknowledged) < len(self.work) // 2:
            return
        self.victim, self.killed_at = self.leader, time.perf_counter()
        self.voters[self.victim].kill()
        self.voters[self.victim].wait()

    def _stop(self) -> None:
        for process in self.voters.values():
            if process.stdin:
                process.stdin.close()
        for process in self.voters.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _conclude(self, seconds: float) -> int:
        table = Table(title="The metadata quorum")
        table.add_column("what")
        table.add_column("result", justify="right")
        rows = (
            ("topics with an offset", f"{len(self.work):,}"),
            ("acknowledged one by one", f"{len(self.acknowledged):,}"),
            ("under way at the kill, and done", f"{len(self.work) - len(self.acknowledged):,}"),
            ("killed with SIGKILL", f"voter {self.victim}, the leader"),
            ("seconds without a leader", f"{self.seconds_without_leader:.2f}"),
            ("leader now", f"voter {self.leader} in term {self.term}"),
            *((f"held by voter {v}", f"{self.complete[v]:,}") for v in VOTERS),
            ("seconds altogether", f"{seconds:.1f}"),
        )
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
        is_good = set(self.complete.values()) == {len(self.work)} and self.seconds_without_leader
        verdict = "0 of the acknowledged ones are missing" if is_good else "NOT what was asked for"
        self.console.print(f"Three voters, {len(self.work):,} topics each: {verdict}.")
        return 0 if is_good else 1


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and that the system does not use for outgoing connections."""
    return list(islice(filter(_is_free, sample(range(20_000, 30_000), 1000)), count))


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main() -> int:
    arguments = _arguments()
    work = modules(arguments.topics)
    if arguments.vote:
        addresses = {
            voter: Address("127.0.0.1", int(port))
            for voter, port in zip(VOTERS, arguments.ports.split(","), strict=True)
        }
        directory = arguments.directory / f"voter-{arguments.vote}"
        trio.run(vote, QuorumSettings(directory, "demo", arguments.vote, addresses), work)
        return 0
    arguments.directory.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="quorum-", dir=arguments.directory))
    try:
        return Demo(root, work, Console()).run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130  # as shells have it
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--topics", type=_count, default=1500, help="how many modules (1500)")
    parser.add_argument("--directory", type=Path, default=Path("demo-data"))
    parser.add_argument("--keep", action="store_true", help="do not remove what was written")
    parser.add_argument("--vote", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ports", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
