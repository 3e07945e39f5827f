"""Fault injection for real raftmq clusters, after Jepsen: break them, then judge what clients saw.

    python jepsen-like run --workload queue --nemesis kill,partition --time-limit 60 --seed 7

The file list follows a run: `nodes` (processes, disks) on a `network`, `workloads` that use them, a
`nemesis` that breaks them, a `history` of all operations and faults, `checkers` that judge the
history, and a `report` for people.
"""
