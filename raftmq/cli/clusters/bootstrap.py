"""The option `-b`: bootstrap addresses from the command line, RAFTMQ_BOOTSTRAP, or this machine.

Owns the option, its order of precedence (after the verb, before the noun, --profile, the
variables, the default) and the messages about a wrong address. Addresses are parsed when a command
needs them, so that a wrong variable does not disturb the other commands. Only for the default it
tries whether something listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from raftmq.cli.terminal.profiles import chosen_profile

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

    context = _context()
    text, hint = _named_first(given, context.find_root())
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
        raise click.BadParameter("; ".join(problems), context, param_hint=hint)
    return tuple(addresses)


def bootstrap_way_out(given: str | None) -> str:
    """What to do where none of `bootstrap_addresses` answers; the default alone is the one of
    `raftmq dev`."""
    text, place = _named_first(given, _context().find_root())
    if text is None:
        return f"start one with `raftmq dev`, or say where it is with -b HOST:PORT or {VARIABLE}"
    return f"start the nodes there, or correct {place}"


def _named_first(given: str | None, root: click.Context) -> tuple[str | None, str]:
    """The text of the first place that names addresses, and the place, for errors.

    What was typed counts before what the environment says: a person does not think of a variable
    that was set long ago.
    """
    if given is not None:
        return given, "-b"
    is_typed = {
        name: root.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("bootstrap", "profile")
    }
    text: str | None = root.params.get("bootstrap")
    if text is not None and (is_typed["bootstrap"] or not is_typed["profile"]):
        return text, "-b" if is_typed["bootstrap"] else VARIABLE
    named = chosen_profile().bootstrap
    # A profile may have only a client id.
    if named is None:
        return text, VARIABLE
    return named, f"--profile {root.params.get('profile')}"


def _context() -> click.Context:
    context = click.get_current_context()
    assert context is not None, "called outside of a command"
    return context


def _default() -> Address:
    """Where something listens; the first one if nothing does."""
    from raftmq.local.ports import is_listening
    from raftmq.model import Address

    addresses = [Address(DEFAULT.partition(":")[0], port) for port in _DEFAULT_PORTS]
    return next(filter(is_listening, addresses), addresses[0])
