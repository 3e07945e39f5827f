"""`process`: a handler for each record of a group, its commits, retries and dead letters.

Owns the order in which records go to a handler. Reading and membership are in `client/consumer/`
and `client/group/`.
"""
