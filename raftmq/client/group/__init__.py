"""Consumer group membership: joining, heartbeats, rebalance, assignment, commits, leaving."""
