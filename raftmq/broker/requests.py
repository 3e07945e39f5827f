"""Who answers which request: every family of handlers, and the one place that authorises.

Owns the table only. Nobody is refused yet but by the listener, which the server looks at itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.apis import ApiKey
    from raftmq.wire.bodies import Request


class Family(Protocol):
    def handlers(self) -> dict[ApiKey, Handler]: ...


def table_of(families: Iterable[Family]) -> dict[ApiKey, Handler]:
    table: dict[ApiKey, Handler] = {}
    for family in families:
        for api_key, handler in family.handlers().items():
            assert api_key not in table, f"{api_key.name} is answered twice"
            table[api_key] = handler
    return table


def authorize(context: RequestContext, request: Request) -> None:
    """Called for every request before its handler; raises to refuse it."""
