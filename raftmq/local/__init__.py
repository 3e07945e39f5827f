"""A cluster of separate processes on this machine, for development, demonstrations and benchmarks.

Owns the directory of such a cluster and the processes that run on it. What it starts is
`raftmq broker` as an operator would start it. All calls block; `cluster.LocalCluster` is the door.
"""
