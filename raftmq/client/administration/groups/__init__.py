"""What somebody does who looks after consumer groups: who is in them, how far they are, resets.

Begin at `calls.py`, the face of it; `results.py` beside this folder says what comes back.
"""
