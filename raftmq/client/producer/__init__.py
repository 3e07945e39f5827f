"""The producer: records into batches, batches to leaders, and word of what became of them.

The way of a record: `options` (what was asked for), `record` (checked), `partitioners`
and `dealing` (to which partition), `accumulator` and `partition_queue` (into a batch), `sending`
and `numbering` (which request next, under which number, and what an answer means), `producer` (the
shell that asks, and tells). With a name, `rounds` stands for `dealing` and `named` for `numbering`.
"""
