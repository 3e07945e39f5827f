"""One partition: its log (`storage/`), and the replication rules of its leader and followers.

Invariants are assertions; a broker without them would continue with a broken one, so `python -O`
is refused here (docs/decisions/0003).
"""

if not __debug__:  # `python -O` strips assertions
    raise RuntimeError("raftmq needs its assertions: start Python without -O and PYTHONOPTIMIZE")
