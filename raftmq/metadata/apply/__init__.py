"""The next image: what each command does, and what it answers.

Owns every change of the metadata, a module for each family of commands. Total and deterministic:
whatever the bytes, every node comes to the same image and the same result, and nothing raises but
for bytes of a newer version, which this one must not pass over.
"""

from raftmq.metadata.apply.dispatch import apply, apply_bytes

__all__ = ["apply", "apply_bytes"]
