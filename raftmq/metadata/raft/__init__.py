"""The quorum: PySyncObj 0.3.17, hardened without a fork (docs/decisions/0011).

Owns the journal, the transport, the guard in front of every message, elections, snapshots and
reads. Knows nothing of what the replicated commands mean: it hands bytes to a `StateMachine`.
"""
