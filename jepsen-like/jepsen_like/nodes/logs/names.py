"""Names of logs as brokers write them, `<topic>-<id>/Partition-<n>`, and the key that each is."""

from __future__ import annotations

import re

from jepsen_like.workloads.keys import key_of

_LOG_NAME = re.compile(r"(?P<topic>.+)-[0-9a-f]{32}/Partition-(?P<partition>[0-9]+)")


def key_of_log(name: str) -> str | None:
    """None for a name that no log has, such as that of a folder on its way out."""
    found = _LOG_NAME.fullmatch(name)
    return None if found is None else key_of(found["topic"], int(found["partition"]))
