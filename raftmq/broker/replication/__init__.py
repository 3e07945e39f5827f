"""The replicas on this broker: their parts, their fetching from leaders, and their repair."""
