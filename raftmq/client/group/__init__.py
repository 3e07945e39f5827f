"""A consumer's part in a consumer group: joining, staying, planning, leaving."""
