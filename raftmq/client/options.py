"""Names of options, checked: an option that nobody knows is a typing error, and is told as one.

Pure. What values an option may have, its owner says.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def check_options(
    kind: str, given: Iterable[str], known: Collection[str], *, later: Collection[str] = ()
) -> None:
    """
    Args:
        kind: whose options, in one word.
        later: names that are taken for what is not there yet; their owner says so.

    Raises:
        TypeError: some of `given` are in neither; names all of them, and what may be meant.
    """
    unknown = [name for name in given if name not in known and name not in later]
    problems = [_problem(name, known) for name in unknown]
    if problems:
        raise TypeError(
            f"{kind}: {'; '.join(problems)}; the options are {', '.join(sorted(set(known)))}"
        )


def _problem(name: str, known: Collection[str]) -> str:
    similar = get_close_matches(name.lower(), list(known), n=1)
    hint = f" (did you mean {similar[0]!r}?)" if similar else ""
    return f"no option {name!r}{hint}"
