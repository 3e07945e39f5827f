"""Whom to ask, when to ask again, and what is known afterwards. Begin at `cluster.py`."""
