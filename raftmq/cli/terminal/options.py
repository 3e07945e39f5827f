"""Options that many commands share (-o, --timeout, --yes), so that they mean the same in all."""

from __future__ import annotations

import math
import re
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import rich_click as click

from raftmq.cli.clusters.bootstrap import bootstrap_option

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_SECONDS = 30.0  # outlasts a leader change or a broker's restart, not a person's patience


class InOrder(click.RichGroup):
    """Lists verbs in the order in which the module defines them, instead of by letters."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.commands)


class NumberRange(click.FloatRange):
    """A range without `nan`, which click accepts in every range."""

    def convert(
        self,
        value: Any,  # noqa: ANN401  # click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        found: float = super().convert(value, param, ctx)
        # nan would become a timeout or a rate that never ends.
        if math.isnan(found):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return found


# Far more than a topic can have: it catches an offset that was typed in place of a partition.
# Whether there is such a partition is the cluster's to say.
PARTITION = click.IntRange(0, 1_000_000)
# At most 11 days: a longer time is a slip of the finger.
SECONDS = NumberRange(min=0, min_open=True, max=1e6)


def epilog_of(text: str) -> str:
    """What stands below the options: examples, and apart from them what is printed, and exit codes.

    rich-click shows each paragraph as a line, and an empty one as an empty line.
    """
    return re.sub(r"\n\n(?=FORMAT|JSON: |Exit codes: )", "\n\n\n\n", cleandoc(text))


def output_option() -> Callable[[Any], Any]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people, or for programs.",
    )


def timeout_option() -> Callable[[Any], Any]:
    return click.option(
        "--timeout",
        "timeout",
        type=SECONDS,
        metavar="SECONDS",
        default=TIMEOUT_SECONDS,
        show_default=True,
        help="Give up after that long, with exit code 5.",
    )


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`-b` and `--timeout`, of every command that asks a cluster."""
    with_bootstrap: Callable[..., Any] = bootstrap_option()(timeout_option()(command))
    return with_bootstrap


def yes_option() -> Callable[[Any], Any]:
    return click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
