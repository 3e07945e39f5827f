"""Consumer group membership: joining, heartbeats, rebalance, assignment, commits, leaving.

Begin at `membership.py` for the rules, which are pure, and at `member_shell.py` for the tasks that
carry them out.
"""
