"""The replicas on this broker: leader or follower, fetching from leaders, ISR changes, repair."""
