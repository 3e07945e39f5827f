"""Expressions over tags, `paid & (eu | us) & !test`: read, brought to a normal form, applied. Pure.

The normal form is an "or" of clauses, each an "and" of tags that a record has and tags that it has
not. It is made for the wire, and to compare members of a group. Invariants: a filter is bounded,
whatever the text is; its clauses are sorted, and none contradicts itself or implies another one, so
that the order of writing does not matter; `parse(str(filter)) == filter`.
(Texts that mean the same may have two forms: `a | b` and `a | !a & b`.)
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import TAG_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

CLAUSES_MAX, TERMS_MAX = 16, 16  # of a filter, and of one clause
TEXT_CHARS_MAX, DEPTH_MAX = 8192, 32  # of an expression, and of parentheses in it
EVERYTHING = "*"
# On the way to the normal form some clauses may fall together again, so that it may pass through
# more of them, and larger ones. These limits bound its time, to about 0.1 s.
_CLAUSES_BETWEEN, _TERMS_BETWEEN = 64, 64
_PAIRS_MAX = 100_000  # of clauses that are compared, for a whole expression

_TOKEN = re.compile(r"""\s*(?:([&|!()])|"((?:[^"\\]|\\.)*)"|([^\s&|!()"]+))""", re.DOTALL)
# Signs of patterns and lists, which there are not, stand in quotation marks as well.
_PLAIN = re.compile(r'[^\s&|!()",*]+')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class TagExpressionError(ValueError):
    """The expression cannot be read, or is too large; the text points at the character."""


class Clause(NamedTuple):
    """What a record satisfies that has all of `present` and none of `absent`; both are sorted."""

    present: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        terms = [_quoted(tag) for tag in self.present] + [f"!{_quoted(tag)}" for tag in self.absent]
        return " & ".join(terms)

    @property
    def size(self) -> int:
        return len(self.present) + len(self.absent)

    def matches(self, tags: Collection[str]) -> bool:
        return all(tag in tags for tag in self.present) and not any(
            tag in tags for tag in self.absent
        )

    def implies(self, other: Clause) -> bool:
        """Whatever satisfies it satisfies the other one."""
        return {*other.present} <= {*self.present} and {*other.absent} <= {*self.absent}


class TagFilter(NamedTuple):
    """The normal form. `clauses` are sorted; one of them is enough."""

    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.clauses))

    def matches(self, tags: Collection[str]) -> bool:
        """Whether a record with these tags passes; one without tags may, by `!tag`."""
        return any(clause.matches(tags) for clause in self.clauses)


def tag_filter(asked: str | Iterable[str]) -> TagFilter | None:
    """The filter that a program asks for.

    Args:
        asked: an expression, or tags any of which is enough.

    Returns:
        None: `*`, which everything passes.

    Raises:
        TagExpressionError: it is none, matches nothing, or is too large.
    """
    if isinstance(asked, str):
        return None if asked.strip() == EVERYTHING else parse(asked)
    tags = sorted(set(asked))
    if len(tags) > CLAUSES_MAX:
        raise _too_many(len(tags), "this set of tags")
    if not tags:
        raise TagExpressionError("no tags, so no record would pass: leave the filter out, or say *")
    for tag in tags:
        if problem := _problem_of_tag(tag):
            raise TagExpressionError(f"{problem}: {tag!r}")
    return _filter_of([Clause((tag,)) for tag in tags], "this set of tags")


def parse(text: str) -> TagFilter:
    """Raises TagExpressionError."""
    if len(text) > TEXT_CHARS_MAX:
        raise TagExpressionError(f"{len(text)} characters, at most {TEXT_CHARS_MAX}")
    return _filter_of(_Parser(text).clauses(), f"{text!r}")


# -- Normal form ----------------------------------------------------------------------------------


def _filter_of(clauses: Iterable[Clause], what: str) -> TagFilter:
    found = _reduced(clauses)
    if not found:
        raise TagExpressionError(f"{what} matches no record: it asks for a tag and for its absence")
    if len(found) > CLAUSES_MAX:
        raise _too_many(len(found), what)
    if (terms := max(clause.size for clause in found)) > TERMS_MAX:
        raise TagExpressionError(f"{what} joins {terms} tags by &, at most {TERMS_MAX}")
    normal = TagFilter(found)
    # Alternatives repeat tags; the text is what `parse` has to read again, and brokers keep.
    if (chars := len(str(normal))) > TEXT_CHARS_MAX:
        raise TagExpressionError(
            f"{what} comes to {chars} characters with all of its alternatives, at most"
            f" {TEXT_CHARS_MAX}"
        )
    return normal


def _too_many(count: int, what: str) -> TagExpressionError:
    return TagExpressionError(
        f"{what} comes to {count} alternatives, at most {CLAUSES_MAX}: ask for fewer tags, or let"
        " the producer send one that stands for them"
    )


def _reduced(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """Sorted, without contradictions, and without those that another one contains."""
    possible = sorted({one for one in clauses if not {*one.present} & {*one.absent}})
    kept = [
        one
        for one in possible
        if not any(one is not other and one.implies(other) for other in possible)
    ]
    return tuple(kept)


def _joined(left: Iterable[Clause], right: Iterable[Clause]) -> list[Clause]:
    """Each of the one with each of the other."""
    return [
        Clause(
            tuple(sorted({*one.present, *other.present})),
            tuple(sorted({*one.absent, *other.absent})),
        )
        for one, other in product(left, right)
    ]


# -- Text -----------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """Attributes:
    kind: one of `&|!()*`, "tag", or "end".
    start: where it begins in the text.
    """

    kind: str
    tag: str
    start: int


class _Parser:
    """Reads an expression from left to right; `!` binds before `&`, and `&` before `|`.

    Clauses of an expression and of its negation are built side by side by the sign that is handed
    down, so that nothing has to be turned around afterwards.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._read()
        self._at = self._depth = self._pairs = 0

    def clauses(self) -> tuple[Clause, ...]:
        found = self._alternatives(is_positive=True)
        if self._next.kind != "end":
            raise self._problem("expected & or | or the end")
        return found

    # -- grammar ---------------------------------------------------------------------------

    def _alternatives(self, *, is_positive: bool) -> tuple[Clause, ...]:
        """`a | b`; of a negation, `!a & !b`."""
        found = self._joint(is_positive=is_positive)
        while self._take("|"):
            found = self._put_together(found, self._joint(is_positive=is_positive), is_positive)
        return found

    def _joint(self, *, is_positive: bool) -> tuple[Clause, ...]:
        """`a & b`; of a negation, `!a | !b`."""
        found = self._term(is_positive=is_positive)
        while self._take("&"):
            found = self._put_together(found, self._term(is_positive=is_positive), not is_positive)
        return found

    def _term(self, *, is_positive: bool) -> tuple[Clause, ...]:
        while self._take("!"):
            is_positive = not is_positive
        if self._take("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise self._problem(f"more than {DEPTH_MAX} parentheses in each other")
            found = self._alternatives(is_positive=is_positive)
            if not self._take(")"):
                raise self._problem("expected & or | or )")
            self._depth -= 1
            return found
        token = self._next
        if token.kind == EVERYTHING:
            raise self._problem(f'{EVERYTHING} stands alone; a tag of that name is "{EVERYTHING}",')
        if token.kind != "tag":
            raise self._problem("expected a tag, ! or (")
        if problem := _problem_of_tag(token.tag):
            raise self._problem(problem)
        self._at += 1
        return (Clause((token.tag,)) if is_positive else Clause((), (token.tag,)),)

    def _put_together(
        self, left: tuple[Clause, ...], right: tuple[Clause, ...], is_either: bool
    ) -> tuple[Clause, ...]:
        count = len(left) + len(right) if is_either else len(left) * len(right)
        if count > _CLAUSES_BETWEEN:
            raise self._problem(f"{count} alternatives, of {_CLAUSES_BETWEEN} at most,")
        self._pairs += count * count
        if self._pairs > _PAIRS_MAX:
            raise self._problem("too many alternatives that are joined again and again")
        found = _reduced([*left, *right] if is_either else _joined(left, right))
        if (terms := max((clause.size for clause in found), default=0)) > _TERMS_BETWEEN:
            raise self._problem(f"{terms} tags joined by &, of {_TERMS_BETWEEN} at most,")
        return found

    # -- tokens ----------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, kind: str) -> bool:
        is_it = self._next.kind == kind
        self._at += is_it
        return is_it

    def _read(self) -> list[_Token]:
        tokens, at, text = list[_Token](), 0, self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:  # all but this begins some token
                start = at + len(text[at:]) - len(text[at:].lstrip())
                raise self._at_character("a quotation mark that is not closed", start)
            mark, quoted, plain = found.groups()
            start = found.start(found.lastindex or 0)
            if mark:
                tokens.append(_Token(mark, "", start))
            elif quoted is not None:
                tokens.append(_Token("tag", _ESCAPED.sub(r"\1", quoted), start - 1))
            elif plain == EVERYTHING:
                tokens.append(_Token(EVERYTHING, plain, start))
            elif _PLAIN.fullmatch(plain) is None:
                raise self._at_character(
                    f'& is and, | is or, there are no patterns; a tag of that name is "{plain}",'
                    " written so",
                    start,
                )
            else:
                tokens.append(_Token("tag", plain, start))
            at = found.end()
        return [*tokens, _Token("end", "", len(text))]

    def _problem(self, what: str) -> TagExpressionError:
        return self._at_character(what, self._next.start)

    def _at_character(self, what: str, at: int) -> TagExpressionError:
        shown = f"{self._text[:at]} >>> {self._text[at:]}"
        return TagExpressionError(f"{what} at character {at + 1}: {shown}")


def _problem_of_tag(tag: str) -> str:
    try:
        length = len(tag.encode())
    except UnicodeEncodeError:  # a surrogate, as for a byte of a command line that is not UTF-8
        return "a tag that is not valid Unicode"
    if not 0 < length <= TAG_BYTES_MAX:
        return f"a tag has 1 to {TAG_BYTES_MAX} bytes"
    return ""


def _quoted(tag: str) -> str:
    if _PLAIN.fullmatch(tag):
        return tag
    escaped = tag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
