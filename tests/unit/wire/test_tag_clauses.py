"""Filters of tags in messages: there and back, and nothing but the normal form. A12.1."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidRequest, RemoteProtocolError
from raftmq.tag_filter import CLAUSES_MAX, TERMS_MAX, parse
from raftmq.wire.messages.groups import JoinGroup, Protocol
from raftmq.wire.tag_clauses import TagClause, expression_of, pack_filter, read_filter
from tests.bodies import decode_body, encode_body


@pytest.mark.parametrize(
    "text", ["eu", "!test", "paid & (eu | us) & !test", '"*" | "a b"', "ä & !\U0001f600"]
)
def test_there_and_back(text: str) -> None:
    """A member's filter is the same for the coordinator, and as an expression. A12.1."""
    asked = parse(text)
    join = JoinGroup("g", "", (Protocol("range"),), 1, 1, tags=pack_filter(asked))
    told = decode_body(JoinGroup, encode_body(join)).tags
    assert read_filter(told) == asked
    assert parse(expression_of(told)) == asked


def test_no_filter_is_no_clause() -> None:
    """As a client sends it that does not know the field."""
    assert pack_filter(None) == ()
    assert read_filter(()) is None
    assert expression_of(()) == ""


@pytest.mark.parametrize(
    ("clauses", "told"),
    [
        ((TagClause(("us", "eu")),), "filter of tags us & eu: its normal form is eu & us"),
        ((TagClause(("us",)), TagClause(("eu",))), "us | eu: its normal form is eu | us"),
        ((TagClause(("eu",)), TagClause(("eu", "us"))), "its normal form is eu"),
        ((TagClause(("eu",), ("eu",)),), "matches no record"),
        ((TagClause(()),), "filter of tags: expected a tag"),
        ((TagClause(("ä" * 128,)),), "a tag has 1 to 255 bytes"),
    ],
)
def test_another_form_is_refused(clauses: tuple[TagClause, ...], told: str) -> None:
    """Else members with the same filter would look as if they had different ones. A12.1."""
    with pytest.raises(InvalidRequest) as caught:
        read_filter(clauses)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "clauses",
    [
        tuple(TagClause((f"t{number:02}",)) for number in range(CLAUSES_MAX + 1)),
        (TagClause(tuple(f"t{number:02}" for number in range(TERMS_MAX + 1))),),
        (TagClause(("",)),),
        (TagClause(("x" * 256,)),),
    ],
)
def test_limits_hold_before_anything_is_read(clauses: tuple[TagClause, ...]) -> None:
    """Of what a peer sends."""
    join = JoinGroup("g", "", (Protocol("range"),), 1, 1, tags=clauses)
    with pytest.raises(RemoteProtocolError, match="JoinGroup"):
        decode_body(JoinGroup, encode_body(join))
