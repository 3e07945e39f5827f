"""The disk: the one door to files, and the small files that are replaced whole.

Owns nothing but the way to the operating system. The partition log and the journal of the
metadata quorum stand on it; `tests/simulation/disk.py` is its twin.
"""
