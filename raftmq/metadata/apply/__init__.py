"""Applies commands to the metadata image: one module of rules for each family of commands.

Owns every change of the metadata. Total and deterministic: for any bytes every node computes the
same image and the same result. The only exception raised is for bytes of a newer version, which
this one must not skip.
"""

from raftmq.metadata.apply.dispatch import apply, apply_bytes

__all__ = ["apply", "apply_bytes"]
