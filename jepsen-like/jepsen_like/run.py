"""One run, from its settings to its verdict: `run`.

Owns what a run stands on, in the order in which it is made: namespaces for mounts and network where
the machine allows them, a folder, a cluster, a workload. The phases are in `acts.py`.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio
from msgspec.structs import asdict, replace

from jepsen_like.acts import Acts
from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.retry_activity import RetryCounts
from jepsen_like.checkers.transaction_activity import TransactionCounts
from jepsen_like.checkers.verdict import judge
from jepsen_like.history.recorder import Recorder
from jepsen_like.nemesis.registry import KINDS, choose, lacking
from jepsen_like.network.lab import Lab
from jepsen_like.network.namespaces import unshare_here
from jepsen_like.network.probe import lab_missing
from jepsen_like.nodes.cluster import NodeCluster
from jepsen_like.planted.real import plant_in_clients
from jepsen_like.progress import Progress
from jepsen_like.report.folder import RunFolder
from jepsen_like.report.surroundings import read_surroundings
from jepsen_like.settings import BadSettings
from jepsen_like.workloads.registry import make_workload

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jepsen_like.checkers.verdict import Verdict
    from jepsen_like.history.event import Event
    from jepsen_like.settings import RunSettings

RESULTS = Path("jepsen-results")
# Minimum activity, far below what a run on a slow machine does; with less it proves nothing.
FAULTS_EACH_SECONDS = 20.0  # one fault in so many
# Acknowledged values by workload; metadata has none.
ACKS_EACH_SECOND = {
    "queue": 20,
    "groups": 4,
    "reruns": 20,
    "transactions": 20,
    "schedule": 20,
    "retries": 4,
}
GENERATION_SECONDS = 20.0  # one generation of each group in so many
FINISHED_EACH_SECOND = 0.5  # generations of producers with names
DELIVERIES_EACH_SECOND, CANCELS_EACH_SECOND = 10.0, 0.5  # of scheduled records
# Of five minutes with faults: a rare error takes many tries. A shorter run needs less and shows
# less, in proportion.
TRANSACTIONS_SECONDS = 300.0
TRANSACTIONS = TransactionCounts(
    decisions=5_000, aborts=500, take_overs=100, strokes=50, late=20, installed=5
)
# Of members that handle, and move what fails: each crashes, on the average, in so many seconds.
HANDLED_EACH_SECOND, RETURNS_EACH_SECOND, LETTERS_EACH_SECOND = 10.0, 0.5, 0.5
CRASH_SECONDS = 30.0
OKS_EACH_SECOND = 2  # operations that ended well
FINAL_SECONDS = 120.0  # for the final reads of a minute's records on a slow machine


def run(settings: RunSettings, path: Path | None = None, *, bug: str = "") -> str:
    """Play it, judge it, write it down and say it: "passed", "failed" or "unknown".

    Changes this process for good: it gets mounts and a network of its own, where that is possible.

    Args:
        path: of the run's folder; None: a new one below `jepsen-results`.
        bug: to be planted, by name; only tests do.

    Raises:
        BadSettings: it cannot be done here, or there.
    """
    folder = RunFolder(path or _new_folder(settings))
    _check_free(folder)
    no_lab = lab_missing()
    if not no_lab:
        unshare_here()
    if bug:
        plant_in_clients(bug)
    logging.getLogger("raftmq").addHandler(logging.NullHandler())  # of the clients
    history = _play(settings, folder, no_lab=no_lab, bug=bug)
    verdict = judge_run(folder.path, history.events)
    folder.write(history.events, verdict)
    sys.stdout.write(folder.summary())
    return folder.outcome()


def _check_free(folder: RunFolder) -> None:
    """Files of another run would be taken for this one's."""
    if folder.history_path.exists():
        raise BadSettings(f"{folder.path} holds a run already: name another with --folder")
    try:
        folder.nodes_path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder.path} cannot be made ({error.strerror}): name another with --folder"
        raise BadSettings(why) from error


def _new_folder(settings: RunSettings) -> Path:
    now = datetime.now().astimezone()
    return RESULTS / f"{now:%Y%m%d-%H%M%S}-{settings.workload}-{settings.seed}"


def demands_of(settings: RunSettings, kinds: Collection[str]) -> Demands:
    """How much must have happened for silence to mean something. `kinds`: that could be done."""
    seconds = settings.time_limit if not settings.fault_events else 10.0 * settings.fault_events
    faults = max(1, int(seconds / FAULTS_EACH_SECONDS)) if kinds else 0
    has_groups, has_names = settings.workload == "groups", settings.workload == "reruns"
    has_schedules = settings.workload == "schedule"
    return Demands(
        acks_min=int(seconds * ACKS_EACH_SECOND.get(settings.workload, 0)),
        oks_min=int(seconds * OKS_EACH_SECOND),
        faults_min=settings.fault_events * len(kinds) * 4 // 5 or faults,
        generations_min=int(seconds / GENERATION_SECONDS) if has_groups else 0,
        finished_min=int(seconds * FINISHED_EACH_SECOND) if has_names else 0,
        deliveries_min=int(seconds * DELIVERIES_EACH_SECOND) if has_schedules else 0,
        cancels_min=int(seconds * CANCELS_EACH_SECOND) if has_schedules else 0,
        transactions=_transactions_wanted(settings, seconds, faults),
        retries=_retries_wanted(settings, seconds),
        is_to_end=settings.workload in ACKS_EACH_SECOND,
    )


def _transactions_wanted(settings: RunSettings, seconds: float, faults: int) -> TransactionCounts:
    """Without faults nothing is late, and nobody needs a snapshot of the quorum."""
    if settings.workload != "transactions":
        return TransactionCounts()
    share = min(1.0, seconds / TRANSACTIONS_SECONDS)
    full = TRANSACTIONS if faults else replace(TRANSACTIONS, strokes=0, late=0, installed=0)
    return TransactionCounts(**{name: int(share * least) for name, least in asdict(full).items()})


def _retries_wanted(settings: RunSettings, seconds: float) -> RetryCounts:
    if settings.workload != "retries":
        return RetryCounts()
    return RetryCounts(
        handled=int(seconds * HANDLED_EACH_SECOND),
        returns=int(seconds * RETURNS_EACH_SECOND),
        letters=int(seconds * LETTERS_EACH_SECOND),
        crashes=int(seconds / CRASH_SECONDS),
    )


def judge_run(path: Path, history: Sequence[Event]) -> Verdict:
    """By what its folder says was asked for, and could be done."""
    around = read_surroundings(RunFolder(path).settings_path)
    capabilities = dict.fromkeys((kind.needs for kind in KINDS.values()), "") | around.missing
    missing = lacking(around.settings.nemesis, capabilities)
    kinds = [kind for kind in around.settings.nemesis if kind not in missing]
    return judge(history, demands_of(around.settings, kinds))


def _play(settings: RunSettings, folder: RunFolder, *, no_lab: str, bug: str) -> Recorder:
    """Everything that was made is removed when it returns, except the folder."""
    node_ids = range(1, settings.nodes + 1)
    with ExitStack() as stack:
        lab = None if no_lab else stack.enter_context(Lab.open(node_ids, settings.seed))
        cluster = stack.enter_context(
            NodeCluster(folder.nodes_path, node_ids=node_ids, lab=lab, no_lab=no_lab, bug=bug)
        )
        folder.begin(settings, capabilities=cluster.capabilities)
        kinds = choose(settings.nemesis, cluster.capabilities, _say_loudly)
        if settings.nemesis and not kinds:
            raise BadSettings("none of these faults can be done here")
        file = stack.enter_context(folder.history_path.open("wb"))
        recorder = Recorder(time.monotonic, file=file)
        trio.run(_play_acts, settings, kinds, cluster, recorder)
        return recorder


async def _play_acts(
    settings: RunSettings, kinds: Sequence[str], cluster: NodeCluster, recorder: Recorder
) -> None:
    workload = make_workload(
        settings.workload,
        bootstrap=cluster.bootstrap,
        recorder=recorder,
        random=Random(f"workload/{settings.seed}"),
        node_count=settings.nodes,
        processes=settings.processes,
        rate=settings.rate,
        acks=settings.acks,
        final_seconds=FINAL_SECONDS,
    )
    progress = Progress(recorder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.run)
        await Acts(settings, kinds, cluster, workload, recorder).play()
        nursery.cancel_scope.cancel()
    progress.show(is_last=True)


def _say_loudly(line: str) -> None:
    sys.stderr.write(f"!!! {line}\n")
    sys.stderr.flush()
