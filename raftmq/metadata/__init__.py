"""Cluster metadata (topics, partitions, ISR, brokers, groups) in a Raft quorum (Kafka: KRaft).

Owns the replicated state (`image`), the commands that change it (`commands`, `apply`), the rules
of the active controller and, in `raft`, the quorum itself. Everything but `raft` is pure: no I/O,
no clock, no tasks.
"""
