"""Break real clusters, and judge what clients were told: the fault-injection suite of raftmq.

    python jepsen-like run --workload queue --nemesis kill,partition --time-limit 60 --seed 7

The file list is the way of a run: `nodes` (processes, disks) on a `network`, `workloads` that use
them, a `nemesis` that breaks them, a `history` of all of it, `checkers` that judge the history, and
a `report` that a person reads.
"""
