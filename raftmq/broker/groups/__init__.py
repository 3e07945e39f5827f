"""The coordinator of consumer groups: rules of one group, and the broker that carries them out.

`group.py` and what belongs to it is pure; `coordinator.py` begins the rest.
"""
