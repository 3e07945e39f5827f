"""How this program was called, so that the commands which hints name can be typed as they stand."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote

NAME = "raftmq"
COMPLETION_VARIABLE = "_RAFTMQ_COMPLETE"  # set by the shell's function, see click


def program() -> str:
    """`raftmq` where the shell finds it under that name, else as it was typed."""
    called = Path(sys.argv[0])
    # `python -m raftmq`: the interpreter as it was typed, since only some have the package.
    if called.name == "__main__.py" and called.parent.name == NAME:
        return f"{quote(sys.orig_argv[0])} -m {NAME}"
    # A shell that finds a program in its PATH hands over the whole path; other programs (tests,
    # for one) call the command within their own process.
    if called.name != NAME or shutil.which(NAME) == str(called):
        return NAME
    return quote(str(called))


def as_called(text: str) -> str:
    """The text with its commands, like `raftmq topic list`, as they have to be typed here."""
    return text.replace(f"`{NAME} ", f"`{program()} ") if f"`{NAME} " in text else text
