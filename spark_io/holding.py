"""A task whose copy has fenced it: it holds on until Spark ends it.

Spark may run two attempts of a task at once (speculation), and both write under one name: the later
one fences the earlier. If that failed at once, Spark would count a failure and start another copy,
which fences the one that was to go on, up to spark.task.maxFailures: the job would die of nothing.
So it waits. Spark kills it as soon as the copy is done, and Spark's daemon for Python does so when
its executor or driver is gone.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raftmq.errors import OutcomeUnknown, ProducerFenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Longer than the copy of most tasks takes; not for ever, as it may be another job that has fenced
# this one, of which Spark knows nothing.
HOLD_SECONDS_MAX = 300.0

logger = logging.getLogger(__name__)


@contextmanager
def held_if_fenced(*, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """
    Raises:
        ProducerFenced, OutcomeUnknown: of a fence, later than the block does, if this process
            still runs by then.
    """
    try:
        yield
    except (ProducerFenced, OutcomeUnknown) as error:
        if not _is_fenced(error):
            raise
        logger.info("fenced, waiting for Spark to end this attempt: error=%s", error)
        sleep(HOLD_SECONDS_MAX)
        error.add_note(
            f"Spark has not ended this attempt within {HOLD_SECONDS_MAX:g} s. If the job or query "
            "was started twice, let one of them run; if another attempt takes longer than that, "
            "set spark.speculation to false"
        )
        raise


def _is_fenced(error: BaseException | None) -> bool:
    """Also while something was on its way, of which nobody knows now whether it has arrived."""
    return isinstance(error, ProducerFenced) or (
        isinstance(error, OutcomeUnknown) and isinstance(error.__cause__, ProducerFenced)
    )
