"""Consumer groups on the broker: pure rules of one group, and the coordinator that performs them.

`group.py` and what belongs to it is pure; `coordinator.py` begins the rest.
"""
