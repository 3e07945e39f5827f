"""The option `-b`: bootstrap addresses from the command line, RAFTMQ_BOOTSTRAP, or this machine.

Owns the option, its order of precedence (after the verb, before the noun, the variable, the
default) and the messages about a wrong address. Addresses are parsed when a command needs them, so
that a wrong variable does not disturb the other commands. Only for the default it tries whether
something listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.model import Address

VARIABLE = "RAFTMQ_BOOTSTRAP"
DEFAULT = "127.0.0.1:9292"  # the first broker of `raftmq dev`
# The first three of it: after `raftmq dev kill 1` commands go on. In this order and only one of
# them, as another cluster of this machine may be at the next port.
_DEFAULT_PORTS = (9292, 9293, 9294)


def bootstrap_option(*, is_global: bool = False) -> Callable[[Any], Any]:
    """`-b`. Only the one before the noun reads the variable, so that one after the verb wins."""
    return click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        envvar=VARIABLE if is_global else None,
        help=f"Brokers to ask, one that answers is enough; else ${VARIABLE}, else {DEFAULT}"
        " (9293, 9294 if nothing listens there).",
    )


def bootstrap_addresses(given: str | None) -> tuple[Address, ...]:
    """Each address once, from the first place that names some, beginning with `given`."""
    from raftmq.errors import InvalidConfig
    from raftmq.rpc.protocol import parse_address

    context = click.get_current_context()
    assert context is not None, "called outside of a command"
    root = context.find_root()
    places = (given, root.params.get("bootstrap"))
    text: str | None = next((place for place in places if place is not None), None)
    if text is None:
        return (_default(),)
    addresses: dict[Address, None] = {}
    problems: list[str] = []
    for part in map(str.strip, text.split(",")):
        # An empty text falls through to `parse_address`, which says what is missing.
        if not part and text.strip(" ,"):
            problems.append(f"{text!r} has a comma too many")
            continue
        try:
            addresses[parse_address(part)] = None
        except InvalidConfig as error:
            problems += error.problems
    if problems:
        # Name the place that is wrong: a person does not think of a variable that was set long ago.
        is_variable = given is None and (
            root.get_parameter_source("bootstrap") is ParameterSource.ENVIRONMENT
        )
        hint = VARIABLE if is_variable else "-b"
        raise click.BadParameter("; ".join(problems), context, param_hint=hint)
    return tuple(addresses)


def _default() -> Address:
    """Where something listens; the first one if nothing does."""
    from raftmq.local.ports import is_listening
    from raftmq.model import Address

    addresses = [Address(DEFAULT.partition(":")[0], port) for port in _DEFAULT_PORTS]
    return next(filter(is_listening, addresses), addresses[0])
