"""The directory of a local cluster: is it ours, its lock, and the plan that is kept in it.

Owns `cluster.json` and the lock. Writes only to a directory that is absent, empty or made by this
package. The lock is taken before the directory is examined, so that of two commands that start a
cluster in it at the same time one is refused.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
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


LOCK_SECONDS_MAX = 1.0  # a `raftmq dev` that was just stopped needs a moment to release it
_LOOK_SECONDS = 0.02  # between attempts


class _Format(msgspec.Struct):
    """The field that every version of the file has, to be read before the rest."""

    format_version: int


def find_layout(directory: Path) -> Layout:
    """An absolute path, as settings contain it. Raises InvalidConfig."""
    root = directory.expanduser().resolve()
    # Control characters would need escapes that TOML and JSON do not share.
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
    """Write the nodes' settings, then the plan: where a plan is, its settings are complete."""
    for node_id in plan.node_ids:
        write_file(layout.settings(node_id), plan.settings(node_id, layout).encode())
    replace_json(layout.plan, plan)


@contextmanager
def hold(layout: Layout) -> Iterator[None]:
    """Lock the directory for this process, and make it if need be. Made here, it is removed again
    unless the body writes a plan.

    Raises:
        InvalidConfig: it holds something else.
        DirectoryInUse: another process has locked it, or brokers run on it without an owner.
    """
    _check_ours(layout)
    is_new = not layout.root.exists()
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    with ExitStack() as closing:
        closing.callback(os.close, _locked(layout, deadline))
        if is_new:
            # Called first, while the lock is held: else it could remove the next holder's files.
            closing.callback(_remove_unused, layout)
        _check_ours(layout)  # again: it may have changed before the lock was ours
        _check_at_rest(layout)
        yield


def plan_for(layout: Layout, *, brokers: int | None, port: int | None) -> ClusterPlan:
    """The plan that is kept there, or a new one; its port is 0 where free ones are wanted.

    Raises InvalidConfig if the kept one has another number of brokers.
    """
    if not is_ours(layout):
        cluster_id = f"local-{uuid4().hex[:12]}"  # random: a node refuses peers of another cluster
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
    # A start that was killed may have left the lock and settings, but no data.
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


def _remove_unused(layout: Layout) -> None:
    """After a start that failed before there was a plan, as when its ports are taken."""
    if not is_ours(layout):
        layout.lock.unlink(missing_ok=True)
        with suppress(OSError):  # settings were written already: they may stay
            layout.root.rmdir()


def _check_at_rest(layout: Layout) -> None:
    running = read_running(layout)
    alive = [each for each, node in running.nodes.items() if not has_ended(node.process)]
    # Detached brokers hold no lock. Those of an owner that was killed are about to end.
    if running.owner is None and alive:
        raise DirectoryInUse(
            f"brokers {sorted(alive)} run on {layout.root} already, without a terminal: stop them"
            f" with `raftmq dev stop --dir {layout.root}`, or choose another --dir"
        )


def _locked(layout: Layout, deadline: float) -> int:
    """A descriptor of the lock file, made if need be, that holds the lock."""
    while True:
        try:
            layout.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        # The holder before removes the directory just then, also between the two looks of `mkdir`.
        except (FileExistsError, FileNotFoundError):
            if time.monotonic() > deadline:  # it is something else, as a link to nothing
                raise
            time.sleep(_LOOK_SECONDS)
            continue
        is_locked = _lock(descriptor)
        # A lock on a file that the holder before has removed keeps no other process out.
        if is_locked and os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
        if not is_locked:
            if time.monotonic() > deadline:
                raise DirectoryInUse(_said_in_use(layout))
            time.sleep(_LOOK_SECONDS)


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


# -- Processes that end with their owner ----------------------------------------------------------
# `raftmq`, but killed with its owner: `python -m raftmq.local.directory PID STARTED broker ...`.
#
# The owner need not be the parent: a broker that is restarted from another terminal keeps the
# owner of the cluster. A thread waits for the owner's end, for any reason, and kills this process
# at once. Unlike the kernel's PR_SET_PDEATHSIG it does not depend on which thread of the owner
# started the process. A process that is paused (SIGSTOP) ends when it is continued.


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
