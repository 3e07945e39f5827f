"""Rules of the active controller: fencing, reviews, elections, preferred leaders, slots, moves.

Owns `Controller`, one object for each term of the quorum's leader, and its parts: reviews of
partitions, probes of brokers, coordinator slots, preferred leaders, planned moves. Pure: inputs are
method calls, outputs are the effects of `effects`. State that must survive a term is in the image.
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
