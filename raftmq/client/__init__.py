"""How programs reach a cluster: whom to ask, when to ask again, and what is known afterwards.

Begin at `cluster.py`; `producing.py`, `fetching.py` and `admin.py` say what can be asked. Knows
bytes of batches and no records, and never guesses: an operation has happened, or it certainly has
not, or its outcome is unknown, and then that is what the caller is told.
"""
