"""The broker process: quorum, partitions and connections composed into one node of the cluster.

Owns what needs all three: the broker's registration, the controller's leadership, the replicas that
the metadata assigns to it, and the request handlers. Nothing below imports it.
"""
