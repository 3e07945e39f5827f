"""`raftmq topic move`, `cluster moves`, and replication factors: partitions get other brokers."""
