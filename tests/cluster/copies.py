"""Disasters for copies that are made exactly once: `python -m tests.cluster.copies --rounds 24`.

Copiers, one of each way, copy a topic of three brokers while copiers are killed and stopped,
and the broker that coordinates, or leads the target or the source, is killed. Exits with 1 at the
first thing that is wrong, with the command that tries again. The seed decides what happens, and
when; processes and kernel take their own time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import Random, randrange

from raftmq.client.transactions.exactly_once import TIMEOUT_MS as TIMEOUT_MS_MAX
from tests.cluster.copier import SESSION_MS, SOURCE, TARGET
from tests.cluster.copying import Copying
from tests.cluster.node_process import NodeFailed

WAYS = ("helper", "by-hand", "blocking", "rival")
KINDS = (
    "kill copier",
    "stop copier",
    "interrupt copier",
    "kill coordinator",
    "kill leader of target",
    "kill leader of source",
    "kill copier and coordinator",
    "kill copier and leader of target",
    "terminate leader of target",
    "stop leader of target",
    "kill all brokers",
    "stop two brokers",
)
SPREAD_SECONDS = 1.5
DOWN_SECONDS = (0.2, 12.0)  # of brokers
# Shorter than all; longer than a session; longer than any transaction's time, too.
STOPPED_SECONDS = (1, SESSION_MS / 1000 + 2, TIMEOUT_MS_MAX / 1000 + 2)


class Strokes:
    def __init__(self, copying: Copying, random: Random, ways: dict[int, str]) -> None:
        self._copying, self._random, self._ways = copying, random, ways

    def strike(self, kind: str) -> None:
        copying, victim = self._copying, self._random.choice(list(self._ways))
        nodes = self._nodes(kind)
        time.sleep(self._random.uniform(0, SPREAD_SECONDS))
        if "kill copier" in kind:
            copying.copiers.kill([victim])
        if kind == "stop copier":
            copying.copiers.pause([victim])
            time.sleep(self._random.choice(STOPPED_SECONDS))
            copying.copiers.resume([victim])
        if kind == "interrupt copier":
            copying.copiers.interrupt(victim)
            copying.copiers.start(victim, self._ways[victim])
        if nodes:
            self._strike_nodes(nodes, kind)
        if "kill copier" in kind:
            copying.copiers.start(victim, self._ways[victim])
        copying.wait_progress()

    def _nodes(self, kind: str) -> list[int]:
        copying, partition = self._copying, self._random.randrange(self._copying.partitions)
        nodes = copying.brokers.nodes
        if "coordinator" in kind:
            return [copying.coordinator()]
        if "leader" in kind:
            leader = copying.leader(TARGET if "target" in kind else SOURCE, partition)
            return [] if leader is None else [leader]
        if "brokers" in kind:
            return nodes if "all" in kind else self._random.sample(nodes, 2)
        return []

    def _strike_nodes(self, nodes: list[int], kind: str) -> None:
        brokers = self._copying.brokers
        if "terminate" in kind:
            brokers.terminate(nodes)
        elif "stop" in kind:
            brokers.pause(nodes)
        else:
            brokers.kill(nodes)
        time.sleep(self._random.uniform(*DOWN_SECONDS))
        if "stop" in kind:
            brokers.resume(nodes)
        else:
            brokers.start(nodes)
            brokers.wait_ready(nodes)


def main() -> int:
    arguments = parse_arguments()
    logging.getLogger("raftmq").addHandler(logging.NullHandler())  # of the traffic
    random, failure, kind = Random(arguments.seed), "", ""
    with tempfile.TemporaryDirectory(prefix="raftmq-copies-") as folder:
        with Copying(Path(folder)) as copying:
            ways = dict(enumerate(arguments.ways, 1))
            for number, way in ways.items():
                copying.copiers.start(number, way)
            try:
                copying.wait_progress()
                strokes = Strokes(copying, random, ways)
                for number in range(arguments.rounds):
                    kind = random.choice(KINDS)
                    sys.stderr.write(f"{number} {kind} {copying.traffic.sent}\n")
                    strokes.strike(kind)
                failure = "\n".join(copying.findings() or copying.disk_findings())
            except NodeFailed as error:
                failure = f"{kind}: {error}"
            if failure and arguments.keep:
                keep(copying, Path(arguments.keep))
        sys.stdout.write(f"{copying.traffic.sent} records\n")
    if failure:
        ways = " ".join(arguments.ways)
        again = f"python -m tests.cluster.copies --rounds {arguments.rounds} --ways {ways}"
        sys.stdout.write(f"\n{failure}\n\nto try again: {again} --seed {arguments.seed}\n")
    return 1 if failure else 0


def keep(copying: Copying, folder: Path) -> None:
    """What all processes have said last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, nodes in (("broker", copying.brokers), ("copier", copying.copiers)):
        for number in nodes.running:
            folder.joinpath(f"{name}-{number}.log").write_text(nodes.stderr(number))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.copies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:3])
    parser.add_argument("--keep", help="where to put what processes said, if something is wrong")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
