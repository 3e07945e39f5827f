"""Heals the cluster: undoes every state that any fault can leave behind, recorded or not.

Owns the order. A step that fails is reported, and the others are taken all the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import trio

    from jepsen_like.nemesis.fault import RunInThread
    from jepsen_like.nemesis.machines import Machines

Step: TypeAlias = "tuple[str, Callable[[], None]]"


async def undo_all(
    machines: Machines, locks: Mapping[int, trio.Lock], run_in_thread: RunInThread
) -> list[str]:
    """Returns what went wrong."""
    links = machines.links
    problems = [] if links is None else await _take([("network", links.heal)], run_in_thread)
    for node in machines.node_ids:
        async with locks[node]:
            problems += await _take(_steps(machines, node), run_in_thread)
    return problems


def _steps(machines: Machines, node: int) -> Iterator[Step]:
    """Disks first: a process that waits for one can neither run nor die."""
    yield f"page of node {node}", partial(_reset_page, machines, node)
    if not machines.capabilities.get("disks", "unknown"):
        yield f"stalled disk of node {node}", partial(machines.resume_disk, node)
        yield f"full disk of node {node}", partial(machines.free_disk, node)
    if machines.is_running(node):
        if not machines.capabilities.get("freezer", "unknown"):
            yield f"frozen node {node}", partial(machines.thaw, node)
        yield f"paused node {node}", partial(machines.resume, node)
    else:
        yield f"start of node {node}", partial(machines.start, node)


def _reset_page(machines: Machines, node: int) -> None:
    page = machines.page(node)
    page.kill_at_sync = 0
    page.fail_syncs = False
    page.sync_delay_seconds = 0.0
    page.clock_offset_ms = 0


async def _take(steps: Iterator[Step] | list[Step], run_in_thread: RunInThread) -> list[str]:
    problems = []
    for what, action in steps:
        try:
            await run_in_thread(action)
        except AssertionError:
            raise
        except Exception as error:
            problems.append(f"{what}: {type(error).__name__}: {error}")
    return problems
