"""Expressions over tags: what they mean, their one form, and errors that point at the character."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.tag_filter import (
    CLAUSES_MAX,
    DEPTH_MAX,
    TERMS_MAX,
    TEXT_CHARS_MAX,
    Clause,
    TagExpressionError,
    TagFilter,
    parse,
    tag_filter,
)

TAGS = ("eu", "paid", "test", "us")
SETS = [frozenset(each) for count in range(5) for each in combinations(TAGS, count)]


def passing(text: str) -> set[frozenset[str]]:
    found = parse(text)
    return {tags for tags in SETS if found.matches(tags)}


def test_an_expression() -> None:
    found = parse("paid & (eu | us) & !test")
    assert found == TagFilter(
        (Clause(("eu", "paid"), ("test",)), Clause(("paid", "us"), ("test",)))
    )
    assert str(found) == "eu & paid & !test | paid & us & !test"
    assert passing("paid & (eu | us) & !test") == {
        frozenset({"eu", "paid"}), frozenset({"paid", "us"}), frozenset({"eu", "paid", "us"})
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("eu|us&paid", "eu | (us & paid)"),
        ("!eu & us", "(!eu) & us"),
        ("!(eu | us)", "!eu & !us"),
        ("!(eu & us)", "!us | !eu"),
        ("!!eu", "eu"),
        ("eu | eu & us", "eu"),
        ("eu & !eu | us", "us"),
        ('"eu" & us', "us & eu"),
        ("eu & (eu | us)", "eu"),
    ],
)
def test_one_form(text: str, same: str) -> None:
    assert parse(text) == parse(same)


def test_records_without_tags() -> None:
    """What an empty set satisfies."""
    assert parse("!test").matches(())
    assert not parse("paid").matches(())


def test_everything_and_any_of() -> None:
    assert tag_filter(" * ") is None
    assert tag_filter({"us", "eu"}) == tag_filter(["eu", "us", "eu"]) == parse("eu | us")
    assert tag_filter(["*"]) == parse('"*"')
    with pytest.raises(TagExpressionError, match="no record would pass"):
        tag_filter(())
    with pytest.raises(TagExpressionError, match="1 to 255 bytes"):
        tag_filter([""])
    for asked in ("eu & \ud800", ["\ud800"]):
        with pytest.raises(TagExpressionError, match="a tag that is not valid Unicode"):
            tag_filter(asked)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a tag, ! or ( at character 1:  >>> "),
        ("paid & & eu", "expected a tag, ! or ( at character 8: paid &  >>> & eu"),
        ("paid eu", "expected & or | or the end at character 6: paid  >>> eu"),
        ("(paid | eu", "expected & or | or ) at character 11: (paid | eu >>> "),
        ("paid)", "or the end at character 5: paid >>> )"),
        ('paid & "eu', 'a quotation mark that is not closed at character 8: paid &  >>> "eu'),
        ("eu | *", '* stands alone; a tag of that name is "*", at character 6'),
        ("eu & u*", 'a tag of that name is "u*", written so at character 6: eu &  >>> u*'),
        ("paid,eu", '& is and, | is or, there are no patterns; a tag of that name is "paid,eu"'),
        ('""', "a tag has 1 to 255 bytes at character 1"),
        ("ä" * 128, "a tag has 1 to 255 bytes at character 1"),
        ("eu & !eu", "'eu & !eu' matches no record"),
        ("x" * (TEXT_CHARS_MAX + 1), f"{TEXT_CHARS_MAX + 1} characters, at most"),
        ("(" * (DEPTH_MAX + 1) + "a", f"more than {DEPTH_MAX} parentheses"),
    ],
)
def test_what_cannot_be_read(text: str, told: str) -> None:
    with pytest.raises(TagExpressionError) as caught:
        parse(text)
    assert told in str(caught.value)


def test_limits() -> None:
    """The largest ones pass."""
    names = [f"t{number:02}" for number in range(CLAUSES_MAX + 1)]
    assert len(parse(" | ".join(names[:-1])).clauses) == CLAUSES_MAX
    with pytest.raises(TagExpressionError, match=f"17 alternatives, at most {CLAUSES_MAX}"):
        parse(" | ".join(names))
    assert parse(" & ".join(names[:-1])).clauses[0].size == TERMS_MAX
    with pytest.raises(TagExpressionError, match=f"joins 17 tags by &, at most {TERMS_MAX}"):
        parse(" & ".join(names))
    with pytest.raises(TagExpressionError, match="128 alternatives, of 64 at most, at character"):
        parse(" & ".join(f"(a{number} | b{number})" for number in range(300)))
    with pytest.raises(
        TagExpressionError,
        match=f"this set of tags comes to 17 alternatives, at most {CLAUSES_MAX}",
    ):
        tag_filter(set(names))


def test_the_work_of_reading_is_bounded() -> None:
    """Not only what comes out of it: as few steps for 8,000 characters as for 800. (A12.1)"""
    many = " | ".join(f"x{number}" for number in range(60))
    with pytest.raises(TagExpressionError, match="65 tags joined by &, of 64 at most, at char"):
        parse("&".join(map(str, range(1_500))))
    with pytest.raises(TagExpressionError, match="joined again and again at character"):
        parse(f"({many}) & {'&'.join('ab' * 1_900)}")
    assert parse("&".join("ab" * 2_000)) == parse("a & b")


def test_the_form_is_bounded_as_the_text_is() -> None:
    """Tags are repeated in each alternative: what is told to brokers can be read there."""
    long = ["".join(pair) * 120 for pair in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")]
    pairs = [f"({one} | {other})" for one, other in zip(long[::2], long[1::2], strict=True)]
    with pytest.raises(TagExpressionError, match=r"comes to \d+ characters .* at most 8192"):
        parse(" & ".join(pairs))
    found = parse(" & ".join(pairs[:3]))
    assert parse(str(found)) == found


trees = st.recursive(
    st.sampled_from(TAGS),
    lambda inner: st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({}) & ({})".format, inner, inner),
        st.builds("{} | {}".format, inner, inner),
    ),
    max_leaves=12,
)


@given(trees)
def test_it_means_what_it_says(text: str) -> None:
    """As Python reads the same expression; and the form, read again, is the form."""
    as_python = text.replace("!", " not ").replace("&", " and ").replace("|", " or ")
    expected = {tags for tags in SETS if eval(as_python, {}, {tag: tag in tags for tag in TAGS})}
    if not expected:
        with pytest.raises(TagExpressionError, match="matches no record"):
            parse(text)
        return
    assert passing(text) == expected
    assert parse(str(parse(text))) == parse(text)


@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=8))
def test_any_tag_can_be_written(tags: list[str]) -> None:
    found = tag_filter(tags)
    assert found is not None
    assert parse(str(found)) == found
    assert found.matches(tags[:1])


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except TagExpressionError:
        return
    assert parse(str(found)) == found
