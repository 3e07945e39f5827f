"""The producer: records into batches, batches to leaders, and word of what became of them.

The way of a record: `options` (what was asked for), `record` (checked), `partitioners`
and `dealing` (to which partition), `accumulator` and `partition_queue` (into a batch), `sending`
(which request next, and what an answer means), `producer` (the shell that asks, and tells).
All but `delivery`, `room`, `bulk` and `producer` are pure.
"""
