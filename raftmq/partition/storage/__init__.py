"""The log of a partition on disk: segments, indexes, flushes, recovery and retention.

The path of a batch: `incoming` checks it, `log` appends it, `segment` writes it, `flusher` makes
it durable, `log` and `lookups` read it; `recovery` finds it again after a crash. Only
`raftmq/disk/files.py` calls the operating system.
"""
