"""Snapshots of the quorum: byte format, files on disk, and transfer to other nodes."""
