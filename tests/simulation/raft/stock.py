"""Stock PySyncObj nodes, one at a time, under virtual time: messages in, messages out.

Owns the names of their private parts. Changes nothing of their behaviour. The hazards that the
quorum guards against are shown on these; should a new version of PySyncObj repair one, the test
that shows it fails.
"""

from __future__ import annotations

from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

NEVER = 1e9
STEP_SECONDS = 1e-5  # a clock that stands still would hold its send loop for ever


class VirtualTime:
    """Seconds, which pass when a test says so, and a little with every look at the clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += STEP_SECONDS
        return self.now


class StockPeer(Node):
    """Stock nodes have addresses; these have names of one letter, with a stable order."""

    def __hash__(self) -> int:
        return ord(self.id[0])

    def _destroy(self) -> None:
        pass


class CapturingTransport(Transport):
    """Attributes:
    sent: the receiver's name and the message, in order.
    """

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: StockPeer, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True

    def destroy(self) -> None:
        pass


class Outcomes(list[tuple[Any, int]]):
    """What a command's callback was told; called like one."""

    def __call__(self, result: object, error: int) -> None:
        self.append((result, error))

    @property
    def is_success(self) -> bool:
        return [error for _, error in self] == [FAIL_REASON.SUCCESS]


class StockNode(SyncObj):
    """A list of strings as the replicated state."""

    def __init__(self, time: VirtualTime, name: str, peers: str, **settings: Any) -> None:
        self._time, self.wire = time, CapturingTransport()
        conf = SyncObjConf(
            **{
                "autoTick": False,
                "useFork": False,
                "logCompactionMinEntries": 1 << 30,
                "logCompactionMinTime": 1 << 30,
                **settings,
            }
        )
        others = [StockPeer(peer) for peer in peers]
        super().__init__(StockPeer(name), others, conf, transport=self.wire)
        self.items: list[str] = []  # after __init__: else it is left out of dumps
        self.set_private("raftElectionDeadline", NEVER)

    @replicated
    def put(self, item: str) -> int:
        self.items.append(item)
        return len(self.items)

    def private(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")

    def set_private(self, name: str, value: object) -> None:
        setattr(self, f"_SyncObj__{name}", value)

    @property
    def log(self) -> list[tuple[int, int]]:
        """Index and term of every entry."""
        return [(index, term) for _, index, term in self.private("raftLog")[:]]

    @property
    def last_index(self) -> int:
        return self.log[-1][0]

    def submit(self, item: str) -> Outcomes:
        outcomes = Outcomes()
        self.put(item, callback=outcomes)
        return outcomes

    def tick(self, seconds: float = 0.02) -> None:
        self._time.now += seconds
        self.doTick(0.0)

    def connect(self, peer: str) -> None:
        self.wire._onNodeConnected(StockPeer(peer))

    def disconnect(self, peer: str) -> None:
        self.wire._onNodeDisconnected(StockPeer(peer))

    def receive(self, peer: str, message: dict[str, Any]) -> None:
        self.wire._onMessageReceived(StockPeer(peer), message)

    def take_sent(self, peer: str | None = None) -> list[dict[str, Any]]:
        """What was sent since the last call, to one peer or to all."""
        sent, self.wire.sent = self.wire.sent, []
        return [message for receiver, message in sent if peer in (None, receiver)]

    def campaign(self) -> None:
        self.set_private("raftElectionDeadline", -1.0)
        self.tick()
        self.set_private("raftElectionDeadline", NEVER)

    def lead(self, supporters: str) -> None:
        """Win an election with the votes of these peers."""
        for peer in supporters:
            self.connect(peer)
        self.campaign()
        for peer in supporters:
            self.receive(peer, {"type": "response_vote", "term": self.raftCurrentTerm})
        assert self._isLeader()

    def acknowledge(self, peer: str, index: int) -> None:
        self.receive(peer, ack(index))


def append(
    entries: list[tuple[bytes, int, int]],
    *,
    term: int,
    previous: tuple[int, int],
    commit_index: int = 1,
) -> dict[str, Any]:
    return {
        "type": "append_entries", "term": term, "commit_index": commit_index,
        "entries": entries, "prevLogIdx": previous[0], "prevLogTerm": previous[1],
    }  # fmt: skip


def ack(index: int) -> dict[str, Any]:
    """That a follower's log agrees up to `index`."""
    return {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True}
