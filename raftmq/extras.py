"""Which packages each extra brings, and the sentence where one of them is missing.

`pip install raftmq` brings the asynchronous client only; everything else is an extra. Imports
nothing that an extra brings, so that what needs one can ask here first.
"""

from __future__ import annotations

from importlib.util import find_spec

_SYNC = ("trio",)
_CLI = (*_SYNC, "click", "rich", "rich_click")
_TESTING = (*_SYNC, "immutables", "pysyncobj")

# By extra: the packages as they are imported, those of the extras that it includes among them.
PACKAGES = {
    "sync": _SYNC,
    "cli": _CLI,
    "testing": _TESTING,
    "broker": tuple(sorted({*_CLI, *_TESTING})),
    "spark": (*_CLI, "numpy", "pyarrow", "pyspark"),
}


class MissingExtra(ModuleNotFoundError):
    """A package is not installed that an extra of raftmq brings; the text has the command for it.

    Not a `RaftmqError`: it is an import that fails, and `except ImportError` is written for that.
    """


def require_extra(extra: str, user: str) -> None:
    """Nothing, where all packages of an extra are there; imports none of them.

    Args:
        extra: one of `PACKAGES`.
        user: what needs it, as people call it; the sentence begins with it.

    Raises:
        MissingExtra: otherwise; `name` is the first package that is missing.
    """
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtra(
            f"{user} needs {_listed(missing)}, which {verb} not installed:"
            f" pip install 'raftmq[{extra}]'",
            name=missing[0],
        )


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
