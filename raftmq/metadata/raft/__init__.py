"""The Raft quorum: PySyncObj 0.3.17, hardened without a fork (decision 0011).

Owns the journal, the transport, the guard in front of every message, elections, snapshots and
linearizable reads. Knows nothing of what the replicated commands mean: it passes bytes to a
`StateMachine`.
"""
