"""A `raftmq broker` whose quorum takes a snapshot after 2,000 commands instead of 100,000.

    python -m benchmarks.transaction_parts.snapshot_broker broker --config FILE

So that a load of seconds has several; changes nothing else of the broker.
"""

from __future__ import annotations

from functools import partial

from raftmq.__main__ import main as be_raftmq
from raftmq.broker import broker
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.settings import QuorumSettings

SNAPSHOT_ENTRIES = 2_000
LIMITS = QuorumLimits(snapshot_entries=SNAPSHOT_ENTRIES, trailing_entries=1_000)


def main() -> None:
    assert "QuorumSettings" in vars(broker), "the broker takes its limits from somewhere else"
    vars(broker)["QuorumSettings"] = partial(QuorumSettings, limits=LIMITS)
    be_raftmq()


if __name__ == "__main__":
    main()
