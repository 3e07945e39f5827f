"""Real brokers inside the test process, for tests of programs that use raftmq.

    with raftmq.testing.broker() as server:
        ...  # connect to server.bootstrap, from sync code, trio or asyncio

They have real sockets, and run in a thread with an event loop of its own; their files are removed
when the block is left. docs/TESTING-YOUR-CODE.md shows them and the fixtures of the pytest plugin
in use. Nothing is imported before it is used: the plugin is loaded by every pytest on the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.extras import require_extra

if TYPE_CHECKING:
    from raftmq.testing.server import Server, broker, cluster

__all__ = ["Server", "broker", "cluster"]


# Type checkers read the import above: to them this would make every name one of the package.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Imported on first use: the plugin loads this package in every run of pytest.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require_extra("testing", "raftmq.testing")
        from raftmq.testing import server

        return getattr(server, name)
