"""`Workload`: what a run needs of a workload. All of it runs in the harness's event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop


class Workload(Protocol):
    name: str

    async def prepare(self) -> None:
        """Make topics and the like, in a cluster without faults."""

    async def run(self, stop: Stop) -> None:
        """Run the clients until `stop` is set; then finish operations in flight."""

    async def final(self) -> None:
        """The final reads, in a cluster that is healed. Once, after `run`."""

    def view(self) -> View:
        """Kept fresh by `run`."""
