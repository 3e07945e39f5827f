"""The log of `raftmq broker`: which lines go to stderr, and how they look.

Owns the two formats. Text has the local time, as operators read it beside other logs; JSON has UTC
with a zone, as collectors want it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.broker.settings import LogSettings

LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"


def begin_log(settings: LogSettings) -> None:
    """Have all loggers write to stderr; once in a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else logging.Formatter(LOG_LINE))
    root = logging.root
    root.addHandler(handler)
    root.setLevel(settings.level.upper())


class JsonLines(logging.Formatter):
    """One object for each line; a traceback is a text in it, so that it never breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        found = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)
