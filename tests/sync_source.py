"""The calls of raftmq/sync, written from the asynchronous classes: `python -m tests.sync_source`.

A blocking call has the parameters and the docstring of the asynchronous one. This program writes
them, and the body where it only runs the asynchronous call in the loop's thread. Bodies that do
more (`by_hand`) stay as they are, as does everything else in the file. A call that is new in an
asynchronous class is added. `tests/unit/sync/test_sync_source.py` compares.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from inspect import cleandoc
from pathlib import Path
from textwrap import fill, indent
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
Call: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Twin:
    """A blocking class, and what makes it from asynchronous ones.

    Attributes:
        home: its module, and its name; no name: the functions of the module.
        sources: likewise, of the asynchronous classes whose calls it has.
        inner: where it keeps the asynchronous object.
        call: its method that runs a coroutine in the loop, with a `timeout`. A call that does not
            wait is run by `self._ask`.
        by_hand: calls whose bodies are not written here.
        hidden: public in Python, but for other modules, not for programs.
        only_here: calls without an asynchronous counterpart.
        timeouts: calls that have a `timeout`, and what the error of it means; empty: none is
            raised.
        notes: a paragraph more in the docstring of a call.
    """

    home: tuple[str, str]
    sources: tuple[tuple[str, str], ...]
    inner: str = ""
    call: str = "self._call"
    by_hand: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    only_here: tuple[str, ...] = ()
    timeouts: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


CALLED_BACK = (
    "`on_delivery` is called in the loop's thread: it must not make blocking calls of this client."
)
TWINS = (
    Twin(
        ("raftmq.sync.admin", "Admin"),
        (
            ("raftmq.client.administration.admin", "Admin"),
            ("raftmq.client.administration.groups.calls", "GroupCalls"),
            ("raftmq.client.administration.transactions", "TransactionCalls"),
            ("raftmq.client.administration.scheduled", "ScheduledCalls"),
            ("raftmq.client.administration.moves", "MoveCalls"),
        ),
        inner="self._admin",
        call="self._loop.call",
        by_hand=("with_timeout",),
    ),
    Twin(
        ("raftmq.sync.client", ""),
        (("raftmq.client.client", ""),),
        by_hand=("connect",),
        hidden=("parse_bootstrap",),
    ),
    Twin(
        ("raftmq.sync.client", "Client"),
        (("raftmq.client.client", "Client"),),
        by_hand=("producer", "consumer", "process", "shared_transaction"),
        only_here=("open", "close"),
        notes={
            "consumer": "It may also be used without a block, until the client is closed.",
            "process": "This thread waits, until Ctrl-C, or until another thread closes the "
            "client: handlers run in others, and what is at work is finished first.",
        },
    ),
    Twin(
        ("raftmq.sync.consumer", "Consumer"),
        (("raftmq.client.consumer.consumer", "Consumer"),),
        inner="self._consumer",
        by_hand=(
            "batches",
            "commit",
            "processing",
            "position",
            "last_consumed",
            "lag",
            "seek",
            "pause",
        ),
        only_here=("open", "close", "records"),
        timeouts={
            "batches": "",
            "commit": "after `timeout` seconds; it may have been committed. Indefinite.",
            "committed": "after `timeout` seconds.",
            "end_offsets": "after `timeout` seconds.",
        },
        notes={
            "batches": "Where there is no such topic or partition, UnknownTopicOrPartition is "
            "raised when `timeout` is over."
        },
    ),
    Twin(
        ("raftmq.sync.moving", "MovingCalls"),
        (("raftmq.client.dead_letters.rejecting", "Moving"),),
        inner="self._consumer",
        timeouts={
            "reject": "after `timeout` seconds; the dead letter may be stored. Indefinite.",
            "retry": "after `timeout` seconds; the record may be stored. Indefinite.",
        },
    ),
    Twin(
        ("raftmq.sync.sending", "TransactionSender"),
        (("raftmq.client.transactions.sending", "TransactionSender"),),
        inner="self._sender",
        by_hand=("send", "enqueue", "send_nowait", "send_many"),
        timeouts={
            "send": "after `timeout` seconds; the end of the block waits for the record. "
            "Indefinite.",
            "enqueue": (
                "as BufferExhausted: the buffer stayed full for `timeout` seconds, and the record "
                "was not accepted. Definite."
            ),
            "send_many": "after `timeout` seconds; some records may be sent. Indefinite.",
            "send_columns": "after `timeout` seconds; some records may be sent. Indefinite.",
            "enqueue_columns": (
                "the buffer stayed full for `timeout` seconds; some records may be sent. "
                "Indefinite."
            ),
        },
        notes={"enqueue": CALLED_BACK, "send_nowait": CALLED_BACK},
    ),
    Twin(
        ("raftmq.sync.transaction", "Transaction"),
        (("raftmq.client.transactions.transaction", "Transaction"),),
        inner="self._transaction",
        by_hand=("commit_offsets",),
        timeouts={
            "reject": "after `timeout` seconds; the end of the block waits for the record. "
            "Indefinite.",
            "retry": "after `timeout` seconds; the end of the block waits for the record. "
            "Indefinite.",
        },
    ),
    Twin(
        ("raftmq.sync.shared", "SharedTransaction"),
        (("raftmq.client.transactions.shared", "SharedTransaction"),),
        by_hand=("version",),
    ),
    Twin(
        ("raftmq.sync.shared", "SharedVersion"),
        (("raftmq.client.transactions.shared", "SharedVersion"),),
        inner="self._version",
        call="self._loop.call",
        by_hand=("join", "commit"),
    ),
    Twin(
        ("raftmq.sync.shared", "Member"),
        (("raftmq.client.transactions.shared", "Member"),),
        inner="self._member",
        by_hand=("statistics", "receipt"),
        timeouts={
            "flush": "after `timeout` seconds; the records are sent nevertheless. Indefinite."
        },
    ),
    Twin(
        ("raftmq.sync.producer", "Producer"),
        (("raftmq.client.producer.producer", "Producer"),),
        inner="self._producer",
        by_hand=(
            "statistics",
            "send",
            "enqueue",
            "send_nowait",
            "flush",
            "send_many",
            "transaction",
        ),
        only_here=("open", "close"),
        timeouts={
            "send": (
                "after `timeout` seconds; the record may be sent nevertheless. Indefinite, unless "
                "it is BufferExhausted, as from `enqueue`."
            ),
            "enqueue": (
                "as BufferExhausted: the buffer stayed full for `timeout` seconds, and the record "
                "was not accepted. Definite."
            ),
            "flush": "after `timeout` seconds; the records are sent nevertheless. Indefinite.",
            "send_many": "after `timeout` seconds; some records may be sent. Indefinite.",
            "send_columns": "after `timeout` seconds; some records may be sent. Indefinite.",
            "enqueue_columns": (
                "the buffer stayed full for `timeout` seconds; some records may be sent. "
                "Indefinite."
            ),
        },
        notes={
            "enqueue": CALLED_BACK,
            "send_nowait": CALLED_BACK,
            "send_many": (
                "Rows are read in this thread, so they may come slowly; functions of a row are "
                "called in the loop's thread, and must not block."
            ),
        },
    ),
)

# What differs in a blocking call: words of docstrings, and types.
WORDS = (
    ("`async with ", "`with "),
    ("`async for ", "`for "),
    ("Cancelling the wait", "Ending the wait"),
    ("The outcome, to be awaited.", "The outcome; its `result` waits for it."),
    ("an `await`", "a `result`"),
    ("An asynchronous iterator", "An iterator"),
)
TYPES = (
    ("Iterable[Any] | AsyncIterable[Any]", "Iterable[Any]"),
    ("-> Batches[ValueT_co, KeyT_co]", "-> Iterator[ConsumedBatch[ValueT_co, KeyT_co]]"),
)
OPENABLE = "Openable"  # its open and aclose are written by hand in each class: open and close
NOT_BLOCKING = ("await", "async", "anyio")  # words that no docstring of a blocking call may have
SECTIONS = ("Args:", "Returns:", "Raises:")
TIMEOUT = "timeout: seconds; None waits for ever."
TIMEOUT_OF_AN_ITERATOR = "timeout: seconds without records after which it ends; None: never."


# -- Files ----------------------------------------------------------------------------------------


def path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def modules() -> tuple[str, ...]:
    """That are written here, in part."""
    return tuple(dict.fromkeys(twin.home[0] for twin in TWINS))


def sources() -> dict[str, str]:
    """The text of every module that is read here, by its name."""
    names = {*modules(), *(module for twin in TWINS for module, _ in twin.sources)}
    return {name: path_of(name).read_text("utf-8") for name in names}


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def written(module: str, texts: Mapping[str, str]) -> str:
    """How a module is to be, before it is formatted."""
    text = texts[module]
    for twin in TWINS:
        if twin.home[0] == module:
            text = _with_calls(twin, text, texts)
    return text


def is_as_written(module: str, texts: Mapping[str, str]) -> bool:
    """Layout and comments do not count."""
    found, wanted = (_parsed(text) for text in (texts[module], written(module, texts)))
    return ast.dump(found) == ast.dump(wanted)


def unread(module: str, texts: Mapping[str, str]) -> list[str]:
    """Parameters that a body, as one by hand may, does nothing with."""
    tree = _parsed(texts[module])
    return [
        f"{name}: {one.arg}"
        for twin in TWINS
        if twin.home[0] == module
        for name, call in dict(_calls(tree, twin.home[1])).items()  # the last of overloads
        for one in ast.walk(call.args)
        if isinstance(one, ast.arg) and one.arg not in {"self", *_names(call.body)}
    ]


def main() -> None:
    texts = sources()
    for module in modules():
        path_of(module).write_text(written(module, texts), "utf-8")
    paths = [str(path_of(module)) for module in modules()]
    ruff = (sys.executable, "-m", "ruff")
    # In this order: imports are merged, sorted and dropped, then everything is laid out.
    subprocess.run([*ruff, "check", "--quiet", "--fix", "--select", "I,F401", *paths], check=True)
    subprocess.run([*ruff, "format", "--quiet", *paths], check=True)


# -- Calls ----------------------------------------------------------------------------------------


def _with_calls(twin: Twin, text: str, texts: Mapping[str, str]) -> str:
    """The text of a module, with the calls of one class written anew, or added to it."""
    lines = text.splitlines()
    tree = _parsed(text)
    known = dict(_calls(tree, twin.home[1]))
    models = {
        name: (module, call)
        for module, owner in twin.sources
        for name, call in _calls(_parsed(texts[module]), owner)
        if name not in twin.hidden
    }
    _check(twin, known, models)
    _check_bases(twin, texts)
    edits: dict[int, tuple[int, list[str]]] = {}  # by the first line: the last, and the new ones
    end = _scope(tree, twin.home[1])[-1].end_lineno
    needed: dict[str, str] = {}  # names of types, and the modules that know them
    for name, (module, model) in models.items():
        call = known.get(name)
        new, used = _call(twin, name, model, _body(call, lines) if call else [])
        needed |= dict.fromkeys(used, module)
        if call is None:
            assert end is not None
            last, rest = edits.get(end + 1, (end, []))
            edits[end + 1] = last, [*rest, "", *new]
        else:
            edits[_first_line(call)] = call.end_lineno or 0, new
            end = call.end_lineno
    for first in sorted(edits, reverse=True):
        last, new = edits[first]
        lines[first - 1 : last] = new
    return _with_imports("\n".join(lines) + "\n", needed, texts)


def _check(twin: Twin, known: Mapping[str, Call], models: Mapping[str, object]) -> None:
    where = ".".join(filter(None, twin.home))
    stale = (known.keys() - models.keys()) ^ {*twin.only_here}
    assert not stale, f"{where}: `only_here` is not what is only there: {sorted(stale)}"
    told = {*twin.by_hand, *twin.timeouts, *twin.notes}
    assert told <= models.keys(), f"{where}: {sorted(told - models.keys())}: no such call"
    missing = {*twin.by_hand} - known.keys()
    assert not missing, f"{where}: by hand, but not there: {sorted(missing)}"


def _check_bases(twin: Twin, texts: Mapping[str, str]) -> None:
    """A call that a source inherits from a class that is not named would be forgotten. One with
    a blocking class of its own is inherited there, too.
    """
    named = {OPENABLE, *(owner for _, owner in twin.sources)}
    inherited = _bases(_parsed(texts[twin.home[0]]), twin.home[1])
    named |= {owner for each in TWINS if each.home[1] in inherited for _, owner in each.sources}
    for module, owner in twin.sources:
        unnamed = _bases(_parsed(texts[module]), owner) - named
        assert not unnamed, f"{module}.{owner} also has the calls of {sorted(unnamed)}: name them"


def _bases(tree: ast.Module, owner: str) -> set[str]:
    """`Generic` has no calls."""
    bases = _class(tree, owner).bases if owner else []
    plain = [one.value if isinstance(one, ast.Subscript) else one for one in bases]
    return {one.id for one in plain if isinstance(one, ast.Name)} - {"Generic"}


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    [found] = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    return found


def _scope(tree: ast.Module, owner: str) -> list[ast.stmt]:
    return _class(tree, owner).body if owner else tree.body


def _calls(tree: ast.Module, owner: str) -> Iterator[tuple[str, Call]]:
    for one in _scope(tree, owner):
        is_call = isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_call and not one.name.startswith("_"):
            yield one.name, one


def _first_line(call: Call) -> int:
    return min([call.lineno, *(one.lineno for one in call.decorator_list)])


def _body(call: Call, lines: list[str]) -> list[str]:
    """The lines after its docstring."""
    if ast.get_docstring(call) is None:
        return lines[call.body[0].lineno - 1 : call.end_lineno]
    return lines[call.body[0].end_lineno or 0 : call.end_lineno]


def _call(twin: Twin, name: str, model: Call, body: list[str]) -> tuple[list[str], set[str]]:
    """Its lines, and the names in its head."""
    margin = " " * (4 if twin.home[1] else 0)
    arguments = deepcopy(model.args)
    if name in twin.timeouts:
        arguments.kwonlyargs.append(ast.arg("timeout", ast.Name("float | None")))
        arguments.kw_defaults.append(ast.Constant(None))
    assert model.returns is not None
    head = f"def {name}({ast.unparse(arguments)}) -> {ast.unparse(model.returns)}:"
    for theirs, ours in TYPES:
        head = head.replace(theirs, ours)
    lines = [f"@{ast.unparse(one)}" for one in model.decorator_list]
    used = _names(ast.parse(f"{head} ...").body)
    lines += [head, *indent(_docstring(twin, name, model), "    ").splitlines()]
    if name not in twin.by_hand:
        body = [f"{margin}    {_passed_on(twin, name, model)}"]
    return [*(f"{margin}{line}".rstrip() for line in lines), *body], used


def _names(code: list[ast.stmt]) -> set[str]:
    return {one.id for part in code for one in ast.walk(part) if isinstance(one, ast.Name)}


def _passed_on(twin: Twin, name: str, model: Call) -> str:
    """A body that runs the asynchronous call in the loop."""
    given = [one.arg for one in model.args.args[1:]]
    given += [f"*{model.args.vararg.arg}"] if model.args.vararg else []
    given += [f"{one.arg}={one.arg}" for one in model.args.kwonlyargs]
    given += [f"**{model.args.kwarg.arg}"] if model.args.kwarg else []
    passed = f"{twin.inner}.{name}"
    if model.decorator_list:  # a property
        passed = f"lambda: {passed}"
    elif given:
        passed = f"lambda: {passed}({', '.join(given)})"
    call = twin.call if isinstance(model, ast.AsyncFunctionDef) else "self._ask"
    timeout = ", timeout=timeout" if name in twin.timeouts else ""
    result = "" if ast.unparse(model.returns or ast.Constant(None)) == "None" else "return "
    return f"{result}{call}({passed}{timeout})"


# -- Docstrings -----------------------------------------------------------------------------------


def _docstring(twin: Twin, name: str, model: Call) -> str:
    """That of the asynchronous call, in the words of a blocking one. Empty if it has none."""
    text = ast.get_docstring(model, clean=False)
    if text is None:
        return ""
    text = cleandoc(text)
    for theirs, ours in WORDS:
        text = text.replace(theirs, ours)
    wrong = [word for word in NOT_BLOCKING if word in text]
    assert not wrong, f"{name}: {wrong} in the docstring of a blocking call: add a rule to WORDS"
    paragraphs = text.split("\n\n")
    width = 100 - (8 if twin.home[1] else 4)
    if name in twin.notes:
        at = sum(not one.startswith(SECTIONS) for one in paragraphs)
        paragraphs.insert(at, fill(twin.notes[name], width))
    if name in twin.timeouts:
        _add_argument(paragraphs, TIMEOUT if twin.timeouts[name] else TIMEOUT_OF_AN_ITERATOR)
    if row := twin.timeouts.get(name):
        if not paragraphs[-1].startswith("Raises:"):
            paragraphs.append("Raises:")
        paragraphs[-1] += "\n" + fill(
            f"RequestTimedOut: {row}", width, initial_indent="    ", subsequent_indent=" " * 8
        )
    text = "\n\n".join(paragraphs)
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _add_argument(paragraphs: list[str], line: str) -> None:
    """As the last of the Args, which come before Returns and Raises."""
    at = next((n for n, one in enumerate(paragraphs) if one.startswith("Args:")), None)
    if at is None:
        at = sum(not one.startswith(SECTIONS) for one in paragraphs)
        paragraphs.insert(at, "Args:")
    paragraphs[at] += f"\n    {line}"


# -- Imports --------------------------------------------------------------------------------------


def _with_imports(text: str, needed: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """With the types that are new to the module, taken from where the asynchronous one has them."""
    known = {name for name, _ in _bound(_parsed(text), "")} | vars(builtins).keys()
    lines = [
        f"    from {dict(_bound(_parsed(texts[module]), module))[name]} import {name}"
        for name, module in sorted(needed.items())
        if name not in known
    ]
    if not lines:
        return text
    head, block, rest = text.partition("if TYPE_CHECKING:\n")
    assert block, "there is no block for imports of types"
    return "\n".join([head + block + lines[0], *lines[1:], rest])


def _bound(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Names of a module, and where each of them is taken from."""
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom):
            yield from ((each.asname or each.name, one.module or "") for each in one.names)
        elif isinstance(one, (ast.ClassDef, ast.FunctionDef)):
            yield one.name, module
        elif isinstance(one, (ast.Assign, ast.AnnAssign)):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            yield from ((each.id, module) for each in targets if isinstance(each, ast.Name))


if __name__ == "__main__":
    main()
