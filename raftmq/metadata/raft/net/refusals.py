"""Logs refused connections between quorum nodes: each reason once, not at every attempt.

Owns which refusals were logged. A refusal means that settings, addresses or directories are wrong,
and that an operator must act: so it is a warning, and an error if peers refuse this node for good.
It is logged again after the two nodes have been connected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.metadata.raft.net.messages import Role

if TYPE_CHECKING:
    from raftmq.metadata.raft.net.messages import NodeHello, Refusal

# Refusals remembered as logged; then all are forgotten. Strangers choose the names in them, so
# that without a bound they could fill the memory.
SAID_MAX = 1000

logger = logging.getLogger("raftmq.metadata")


class Refusals:
    """The refusals of one node. A dialled voter is named by its id, even if another answers."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._logged: dict[str, set[str]] = {}
        self._logged_count = 0

    def on_refused_by(self, voter: int | None, refusal: Refusal) -> None:
        """`voter` refused this node; None: an incoming connection did so before its Hello."""
        level = logging.ERROR if refusal.is_final else logging.WARNING
        if voter is None:  # any process may connect and send this
            level = logging.INFO
        name = _name_of(voter)
        line = "refused by %s: node=%d is_final=%s reason=%s"
        if self._is_new(name, f"by {refusal.reason}"):  # not logged before
            logger.log(level, line, name, self._node_id, refusal.is_final, refusal.reason)

    def on_refusing(self, dialled: int | None, hello: NodeHello, refusal: Refusal) -> None:
        """This node refuses `hello`, of an incoming connection or where it dialled a voter."""
        caller = f"{hello.role.name.lower()}-{hello.node_id}"
        name = caller if dialled is None else _name_of(dialled)
        line = "refusing %s: node=%d answered=%s is_final=%s reason=%s"
        if self._is_new(name, f"of {refusal.reason}"):  # not logged before
            arguments = (name, self._node_id, caller, refusal.is_final, refusal.reason)
            logger.log(self._level_of(dialled, hello, refusal), line, *arguments)

    def forget(self, voter: int) -> None:
        """The voter is connected: its next refusal is logged again."""
        self._logged_count -= len(self._logged.pop(_name_of(voter), ()))

    def _level_of(self, dialled: int | None, hello: NodeHello, refusal: Refusal) -> int:
        """INFO for harmless refusals: a voter with a larger id that asks why it is not dialled, and
        a guest that is refused for the moment and will come back.
        """
        is_question = hello.role is Role.VOTER and dialled is None and hello.node_id > self._node_id
        is_passing = hello.role is not Role.VOTER and dialled is None
        harmless = not refusal.is_final and (is_question or is_passing)
        return logging.INFO if harmless else logging.WARNING

    def _is_new(self, name: str, what: str) -> bool:
        if self._logged_count >= SAID_MAX:  # names chosen by strangers must not fill the memory
            self._logged.clear()
            self._logged_count = 0
        logged = self._logged.setdefault(name, set())
        is_new = what not in logged
        logged.add(what)
        self._logged_count += is_new
        return is_new


def _name_of(voter: int | None) -> str:
    return "a peer" if voter is None else f"voter-{voter}"
