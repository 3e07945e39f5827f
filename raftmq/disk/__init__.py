"""Disk access: files and syncs of the operating system, checkpoints, the flush thread.

Owns only the calls to the operating system and the atomic replacement of small files. The
partition log and the journal of the metadata quorum use it; `tests/simulation/disk.py` is its fake.
"""
