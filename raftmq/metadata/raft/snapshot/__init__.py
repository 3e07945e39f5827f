"""Snapshots of the quorum: their bytes, their files, and their way to other nodes."""
