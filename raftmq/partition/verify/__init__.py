"""Verification of logs on disk (`raftmq log verify`): every rule of the format, read-only.

Owns the judgement, one module per kind of file. Reads everything and changes nothing; works on
folders that no log could be opened from, and on those that a broker has open.
"""
