"""A local cluster of separate broker processes on this machine, for development and benchmarks.

Owns the directory of such a cluster and the processes that run on it. It starts `raftmq broker` as
an operator would. All calls block; `cluster.LocalCluster` is the entry point.
"""
