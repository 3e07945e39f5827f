"""One partition: its log (`storage/`) and, beside it, the rules of its replication."""
