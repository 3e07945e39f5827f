"""The plan of a local cluster: number of nodes, their ports, node settings, and the files' layout.

Owns the arithmetic of the ports. Node N listens on three of them, counted from the base port: for
clients on base + N - 1, for the other brokers 10 above that, for the other voters 20 above. So
three nodes on 9292 take 9292 to 9294, 9302 to 9304 and 9312 to 9314. Every node votes. Pure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from raftmq.errors import BrokerIdNotRegistered, InvalidConfig
from raftmq.model import Address

# -- Layout ---------------------------------------------------------------------------------------
# What lies where in the directory of a local cluster.
#
#     cluster.json    the plan; says that the directory is ours
#     running.json    the nodes' processes, and the process that owns them
#     .lock           held by the process that started the cluster, while the nodes end with it
#     .running-lock   held while running.json is changed
#     node-1.toml     settings of node 1, written anew at each start of the cluster
#     node-1.log      stdout and stderr of all processes of node 1
#     node-1/         its data
#
# Pure: nothing is read or written here.


class Layout(NamedTuple):
    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "cluster.json"

    @property
    def running(self) -> Path:
        return self.root / "running.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def running_lock(self) -> Path:
        return self.root / ".running-lock"

    def settings(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}.toml"

    def log(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}.log"

    def data(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}"


# -- Plan -----------------------------------------------------------------------------------------


HOST = "127.0.0.1"
NODES_MAX = 9  # all of them vote; below the distance of the port ranges
NODES_DEFAULT = 3  # the fewest of which one may be down
PORT_DEFAULT = 9292  # not 9092, so that a Kafka may run beside it
DIRECTORY_DEFAULT = Path("raftmq-data")  # in the working directory
BROKERS_OFFSET, VOTERS_OFFSET = 10, 20  # round numbers: node 2's ports are 9293, 9303 and 9313
PORT_MAX = 65_535 - VOTERS_OFFSET - NODES_MAX + 1  # then the last node's voter port is 65,535
FORMAT_VERSION = 1  # of cluster.json; newer ones are refused

assert NODES_MAX <= BROKERS_OFFSET, "ports of two purposes would meet"


class NodeEndpoint(NamedTuple):
    """Attributes:
    purpose: the peers that connect to it, in words, for messages.
    """

    node_id: int
    purpose: str
    port: int


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    brokers: how many; their ids count from 1.
    port: the base port, where node 1 listens for clients; 0 only until free ones were found.
    """

    format_version: int = FORMAT_VERSION
    cluster_id: str
    brokers: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
    port: Annotated[int, msgspec.Meta(ge=1, le=PORT_MAX)]

    @property
    def node_ids(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses for clients."""
        return ",".join(str(self.address(node_id)) for node_id in self.node_ids)

    def address(self, node_id: int) -> Address:
        """Where the node listens for clients."""
        return Address(HOST, self.port + node_id - 1)

    def endpoints(self) -> list[NodeEndpoint]:
        purposes = {"clients": 0, "other brokers": BROKERS_OFFSET, "other voters": VOTERS_OFFSET}
        return [
            NodeEndpoint(node_id, purpose, self.address(node_id).port + offset)
            for node_id in self.node_ids
            for purpose, offset in purposes.items()
        ]

    def check_node(self, node_id: int) -> None:
        """Raises BrokerIdNotRegistered if there is no such node."""
        if node_id not in self.node_ids:
            are = "is broker 1 alone" if self.brokers == 1 else f"are brokers 1 to {self.brokers}"
            raise BrokerIdNotRegistered(f"there is no broker {node_id}; there {are}")

    def settings(self, node_id: int, layout: Layout) -> str:
        """The TOML of a node. Without control characters, so that JSON's escapes are TOML's."""
        port = self.address(node_id).port
        voters = {each: self.address(each).port + VOTERS_OFFSET for each in self.node_ids}
        lines = [
            "# Written at each start of the cluster: changes are lost.",
            "[node]",
            f"id = {node_id}",
            f"cluster_id = {json.dumps(self.cluster_id)}",
            f"directory = {json.dumps(str(layout.data(node_id)), ensure_ascii=False)}",
            "",
            "[quorum.voters]",
            *(f'{voter} = "{HOST}:{voter_port}"' for voter, voter_port in voters.items()),
        ]
        # The first consumer of a group reads at once: a local cluster has no fleet that starts
        # together.
        lines += ["", "[groups]", "initial_rebalance_delay_ms = 0"]
        for name, offset in (("clients", 0), ("brokers", BROKERS_OFFSET)):
            lines += ["", "[[listeners]]", f'name = "{name}"', f'bind = "{HOST}:{port + offset}"']
        return "\n".join([*lines, ""])


def check_wishes(brokers: int | None, port: int | None) -> None:
    """Raises InvalidConfig with all problems. Port 0 stands for free ports."""
    problems = []
    if brokers is not None and not 1 <= brokers <= NODES_MAX:
        problems.append(f"brokers = {brokers}: expected 1 to {NODES_MAX}")
    if port is not None and not 0 <= port <= PORT_MAX:
        problems.append(
            f"port = {port}: expected 1 to {PORT_MAX}, as others follow, or 0 for free ones"
        )
    if problems:
        raise InvalidConfig(problems)
