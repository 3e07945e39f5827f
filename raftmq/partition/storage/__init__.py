"""The log of a partition on disk.

Reads top down like the path of a batch: `log` takes it, `segment` writes it, `flusher` makes it
durable, `reader` hands it out; `recovery` finds it again after a crash. Only `files` knows the
operating system.
"""
