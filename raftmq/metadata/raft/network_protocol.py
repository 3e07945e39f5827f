"""What the quorum needs of a network: streams, out and in.

Owns the protocol only; sockets and their simulation keep it. What an address is, the network
alone knows: the quorum hands it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    StreamHandler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]

AddressT = TypeVar("AddressT")
AddressT_contra = TypeVar("AddressT_contra", contravariant=True)


class Network(Protocol[AddressT_contra]):
    async def dial(self, address: AddressT_contra, /) -> trio.abc.Stream:
        """A stream to whoever listens at `address`.

        Raises:
            OSError, RaftmqError: unreachable, for now.
        """

    async def serve(
        self,
        handler: StreamHandler,
        address: AddressT_contra,
        /,
        *,
        task_status: trio.TaskStatus[Any] = ...,
    ) -> object:
        """Listen for ever, a task with `handler` for each stream; tell when it has begun."""
