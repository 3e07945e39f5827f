"""Filters of tags in messages: clauses, each an array of tags that are there and tags that are not.

Owns their limits, and the way from and to `TagFilter`. No clauses: no filter. Where a filter is
only kept and shown, it is an expression, the text of its normal form.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import InvalidRequest
from raftmq.model import TAG_BYTES_MAX
from raftmq.tag_filter import (
    CLAUSES_MAX,
    TERMS_MAX,
    TEXT_CHARS_MAX,
    Clause,
    TagExpressionError,
    TagFilter,
    parse,
)
from raftmq.wire.bodies import Body

TagName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TAG_BYTES_MAX)]
TagNames: TypeAlias = Annotated[tuple[TagName, ...], Meta(max_length=TERMS_MAX)]


class TagClause(Body, frozen=True):
    """Satisfied by a record that has all tags of `present` and none of `absent`."""

    present: TagNames
    absent: TagNames = ()


TagClauses: TypeAlias = Annotated[tuple[TagClause, ...], Meta(max_length=CLAUSES_MAX)]
TagExpression: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]  # empty: no filter


def pack_filter(asked: TagFilter | None) -> TagClauses:
    return () if asked is None else tuple([TagClause(*clause) for clause in asked.clauses])


# A consumer sends its filter with each request; reading a large one takes some milliseconds.
@lru_cache(maxsize=64)
def read_filter(clauses: TagClauses) -> TagFilter | None:
    """Raises InvalidRequest: not in the normal form, by which filters are compared."""
    if not clauses:
        return None
    told = _told(clauses)
    try:
        known = parse(str(told))
    except TagExpressionError as error:
        raise InvalidRequest(f"filter of tags: {error}") from error
    if known != told:
        raise InvalidRequest(f"filter of tags {told}: its normal form is {known}")
    return known


def expression_of(clauses: TagClauses) -> TagExpression:
    """Of clauses that `read_filter` has passed: equal filters have equal ones."""
    return str(_told(clauses))


def _told(clauses: TagClauses) -> TagFilter:
    return TagFilter(tuple([Clause(one.present, one.absent) for one in clauses]))
