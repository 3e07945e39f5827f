"""What a run asks of a workload. All of it happens in the one event loop of the harness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop


class Workload(Protocol):
    name: str

    async def prepare(self) -> None:
        """Make what is to be used, in a cluster that is well."""

    async def run(self, stop: Stop) -> None:
        """Clients, until told to stop; then what is under way is finished."""

    async def final(self) -> None:
        """The last reads, in a cluster that is well again. Once, after `run`."""

    def view(self) -> View:
        """Kept fresh by `run`."""
