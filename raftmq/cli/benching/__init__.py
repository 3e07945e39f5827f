"""What `raftmq bench` measures, and how it tells."""
