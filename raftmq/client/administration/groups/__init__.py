"""The admin's calls on consumer groups: members, lag, committed offsets, resets, deletion.

Begin at `calls.py`, the public calls; `results.py` beside this folder has what they return.
"""
