"""The producer: records into batches, batches to partition leaders, and delivery reports.

The way of a record: `options` (what was asked for), `record` (checked), `partitioners` (to which
partition; `StickyPartitioner` without a key), `accumulator` and `partition_queue` (into a batch),
`batch` (its sequence number), `sender` (which request next, and what an answer means), `requests`
(one produce request), `dispatcher` (the tasks that send and report), `producer` (the public calls).
With a name, `ReplayablePartitioner` replaces `StickyPartitioner` and `named_producer` replaces the
numbering in `batch`.
"""
