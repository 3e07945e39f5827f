"""The broker: one process of the cluster, put together from quorum, partitions and connections.

Owns what needs all three: its own registration, the controller's office, the replicas that the
metadata gives it, and the handlers of requests. Nothing below imports it.
"""
