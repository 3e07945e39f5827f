"""Who leads what: the metadata that a Raft quorum keeps, and the rules that change it.

Owns the state (`image`), the commands that change it (`commands`, `apply`), the rules of the
active controller and, in `raft`, the quorum itself. Everything but `raft` is pure.
"""
