"""The directory of a local cluster: whether it is one, and who may start it.

Owns `cluster.json` and the lock. Only a directory that is absent, empty or ours is ever written to.
The lock is held from the first look on, so that of two who begin at the same time one is refused.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from raftmq.errors import DirectoryInUse, InvalidConfig, StorageError
from raftmq.local.plan import FORMAT_VERSION, NODES_DEFAULT, PORT_DEFAULT, ClusterPlan, Layout
from raftmq.local.process import Process, has_ended, wait_end
from raftmq.local.running import read_running, replace_json, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LOCK_SECONDS_MAX = 1.0  # whoever has just been stopped needs a moment to let go
_LOOK_SECONDS = 0.02


class _Format(msgspec.Struct):
    """The part of the file that every version of it has."""

    format_version: int


def find_layout(directory: Path) -> Layout:
    """The same wherever a process is; settings name it. Raises InvalidConfig."""
    root = directory.expanduser().resolve()
    if not str(root).isprintable():
        raise InvalidConfig([f"directory {str(root)!r}: a character of its name cannot be shown"])
    return Layout(root)


def is_ours(layout: Layout) -> bool:
    return layout.plan.is_file()


def read_plan(layout: Layout) -> ClusterPlan:
    """Raises StorageError if it is not readable, or of a newer version."""
    data = layout.plan.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Format).format_version
        if version > FORMAT_VERSION:
            raise StorageError(
                f"{layout.plan} has format {version}, this raftmq knows {FORMAT_VERSION}:"
                " upgrade it, or choose another directory"
            )
        return msgspec.json.decode(data, type=ClusterPlan)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StorageError(
            f"{layout.plan} is not readable: {error}: choose another directory"
        ) from error


def write_plan(layout: Layout, plan: ClusterPlan) -> None:
    """With the settings of its nodes; the plan last, when there is all that it promises."""
    for node_id in plan.node_ids:
        write_file(layout.settings(node_id), plan.settings(node_id, layout).encode())
    replace_json(layout.plan, plan)


@contextmanager
def hold(layout: Layout) -> Iterator[None]:
    """The directory, made if need be, for this process alone.

    Raises:
        InvalidConfig: it holds something else.
        DirectoryInUse: another process has it, or brokers run on it without an owner.
    """
    _check_ours(layout)
    layout.root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as closing:
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        closing.callback(os.close, descriptor)
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                raise DirectoryInUse(_said_in_use(layout))
            time.sleep(_LOOK_SECONDS)
        _check_ours(layout)
        _check_at_rest(layout)
        yield


def plan_for(layout: Layout, *, brokers: int | None, port: int | None) -> ClusterPlan:
    """The plan that is there, or a new one; its port is 0 where free ones are wanted.

    Raises InvalidConfig if another number of brokers is there.
    """
    if not is_ours(layout):
        cluster_id = f"local-{uuid4().hex[:12]}"  # so that two never take each other for their own
        plan = ClusterPlan(
            cluster_id=cluster_id, brokers=brokers or NODES_DEFAULT, port=PORT_DEFAULT
        )
    else:
        plan = read_plan(layout)
    if brokers not in (None, plan.brokers):
        raise InvalidConfig(
            [
                f"{layout.root} has {plan.brokers} brokers, not {brokers}: leave out --brokers, or"
                " choose another --dir"
            ]
        )
    return plan if port is None else msgspec.structs.replace(plan, port=port)


def _check_ours(layout: Layout) -> None:
    if not layout.root.exists() or is_ours(layout):
        return
    if not layout.root.is_dir():
        raise InvalidConfig([f"{layout.root} is no directory: choose another --dir"])
    # A start that was killed may have left the lock and settings, but nothing that counts.
    foreign = [path.name for path in layout.root.iterdir() if not _may_be_left(layout, path)]
    if foreign:
        raise InvalidConfig(
            [
                f"{layout.root} holds {min(foreign)!r} and no {layout.plan.name}: it was not made"
                " for a local cluster; choose another --dir, or an empty one"
            ]
        )


def _may_be_left(layout: Layout, path: Path) -> bool:
    temporary = f"{layout.plan.name}.tmp"
    return path.name in (layout.lock.name, temporary) or (
        layout.lock.exists() and path.name.startswith("node-") and path.suffix == ".toml"
    )


def _check_at_rest(layout: Layout) -> None:
    running = read_running(layout)
    alive = [each for each, node in running.nodes.items() if not has_ended(node.process)]
    if running.owner is None and alive:
        raise DirectoryInUse(
            f"brokers {sorted(alive)} run on {layout.root} already, without a terminal: stop them"
            f" with `raftmq dev stop --dir {layout.root}`, or choose another --dir"
        )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _said_in_use(layout: Layout) -> str:
    owner = read_running(layout).owner
    who = f"process {owner.pid}" if owner else "another process"
    return (
        f"{layout.root} is in use by {who}: stop it with `raftmq dev stop --dir {layout.root}`, or"
        " choose another --dir"
    )


# -- Bound ----------------------------------------------------------------------------------------
# `raftmq`, but ended with its owner: `python -m raftmq.local.directory PID STARTED broker ...`.
#
# The owner need not be the parent: a broker that somebody else restarts belongs to the same owner.
# A thread waits for the owner's end, whatever it died of, and kills this process at once. Unlike
# the kernel's signal at the death of a parent, it does not depend on which thread of the owner
# started the process. A process that is paused ends when it is continued.


def main() -> None:
    pid, started, *arguments = sys.argv[1:]
    owner = Process(int(pid), started)
    Thread(target=_end_with, args=(owner,), name="owner", daemon=True).start()
    sys.argv[1:] = arguments
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)


def _end_with(owner: Process) -> None:
    wait_end(owner)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
