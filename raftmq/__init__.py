"""raftmq: a distributed message queue with Kafka's guarantees and none of its machinery."""

__version__ = "0.1.0"
