"""What somebody does who looks after a cluster: topics, configuration, old records, leaders.

Begin at `admin.py`, the face of it; `results.py` says what comes back. Consumer groups are in
`groups/`.
"""
