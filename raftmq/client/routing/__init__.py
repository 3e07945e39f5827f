"""Partition leaders, retries and metadata refreshes of the client. Begin at `cluster.py`."""
