"""The rules of the active controller: what it asks the quorum for, and why.

Owns `Controller`, one object for each term in office, and its parts: reviews of partitions,
probes of brokers, coordinator slots, preferred leaders. Pure: inputs are method calls, outputs are
the effects of `effects`. Everything that must outlive a term stands in the image.
"""

from raftmq.metadata.controller.controller import Controller, HeartbeatAnswer
from raftmq.metadata.controller.effects import Effect, ProbeBroker, ProbeOutcome, ProposeCommand

__all__ = [
    "Controller",
    "Effect",
    "HeartbeatAnswer",
    "ProbeBroker",
    "ProbeOutcome",
    "ProposeCommand",
]
