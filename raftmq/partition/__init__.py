"""One partition: its log (`storage/`) and, beside it, the rules of its replication.

Invariants are assertions; a broker without them would go on with a broken one, so `python -O`
is refused here (docs/decisions/0003).
"""

if not __debug__:
    raise RuntimeError("raftmq needs its assertions: start Python without -O and PYTHONOPTIMIZE")
