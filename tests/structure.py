"""What the code is made of, in figures: `python -m tests.structure [--checkout DIR]`.

Reads a tree of source without importing it, so that two commits can be compared; a tree is what
tests/unit/test_structure.py makes its rules about. What a record and a commit run through is traced
by benchmarks/traced_calls.py in a process of its own, with the code of the tree in question; so is
what of tests/unit/public_paths.txt can be imported there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PRODUCT = ("raftmq", "spark_io")
LONG_FILE_LINES = 600
WIDE_PACKAGE_MODULES = 15
PURE_CONTRACT = "Pure modules do no I/O"


class Module(NamedTuple):
    """One file; a package is the module of its `__init__.py`.

    What is kept of its syntax is little: a tree of all files is four times as slow to make.

    Attributes:
        imports: for each name that is imported, what it is if that is a module, and else what it
            is taken from.
        classes: the public ones that it defines at its top level.
    """

    name: str
    file: Path
    lines: int
    imports: frozenset[tuple[str, str]]
    classes: frozenset[str]

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"


class Structure:
    """The product in one checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        found = [_read(root, file) for name in PRODUCT for file in (root / name).rglob("*.py")]
        self.modules = {module.name: module for module in sorted(found)}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Which modules each one names in an import, wherever that stands.

        Imports for type checking and within functions count: a reader follows them all the same.
        That importing `a.b` runs `a/__init__.py` does not count, nor does a name in a string.
        """
        return {name: self._imported_by(module) for name, module in self.modules.items()}

    def _imported_by(self, module: Module) -> set[str]:
        found = {one if one in self.modules else source for one, source in module.imports}
        return (found & self.modules.keys()) - {module.name}

    @cached_property
    def circles(self) -> list[frozenset[str]]:
        """Sets of modules each of which needs all others of its set; the largest first."""
        reached = {name: self._reached_from(name) for name in self.modules}
        circles = {
            frozenset(other for other in others if name in reached[other])
            for name, others in reached.items()
            if name in others
        }
        return sorted(circles, key=lambda circle: (-len(circle), sorted(circle)))

    def _reached_from(self, name: str) -> set[str]:
        found: set[str] = set()
        ahead = [name]
        while ahead:
            new = self.imports[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    @cached_property
    def widths(self) -> dict[str, int]:
        """How many modules are directly in a package, without its `__init__`."""
        inside = (module.name for module in self.modules.values() if not module.is_package)
        return dict(Counter(name.rpartition(".")[0] for name in inside))

    @cached_property
    def wide_packages(self) -> dict[str, int]:
        return {name: n for name, n in self.widths.items() if n > WIDE_PACKAGE_MODULES}

    @cached_property
    def public_classes(self) -> dict[str, set[str]]:
        """By name, the modules that define such a class at their top level."""
        found = defaultdict(set)
        for module in self.modules.values():
            for name in module.classes:
                found[name].add(module.name)
        return dict(found)

    @cached_property
    def ambiguous_classes(self) -> dict[str, set[str]]:
        return {name: homes for name, homes in self.public_classes.items() if len(homes) > 1}

    @cached_property
    def pure_lines(self) -> int:
        """Of the modules that import-linter keeps from I/O, clocks and chance."""
        settings = tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))
        [contract] = (
            contract
            for contract in settings["tool"]["importlinter"]["contracts"]
            if contract["name"].startswith(PURE_CONTRACT)
        )
        pure = tuple(contract["source_modules"])
        inside = tuple(f"{name}." for name in pure)
        return sum(
            module.lines
            for module in self.modules.values()
            if module.name in pure or module.name.startswith(inside)
        )


def _read(root: Path, file: Path) -> Module:
    parts = file.relative_to(root).with_suffix("").parts
    text = file.read_text("utf-8")
    body = ast.parse(text, str(file)).body
    classes = (node.name for node in body if isinstance(node, ast.ClassDef))
    return Module(
        name=".".join(parts[:-1] if parts[-1] == "__init__" else parts),
        file=file,
        lines=text.count("\n"),
        imports=frozenset(_imports(body, parts[:-1])),
        classes=frozenset(name for name in classes if not name.startswith("_")),
    )


def _imports(body: list[ast.stmt], package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in _statements(body):
        if isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            source = ".".join([*above, *filter(None, [node.module])])
            yield from ((f"{source}.{one.name}", source) for one in node.names)


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Also those within others: expressions, most of a tree, import nothing."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, []))


# Tokens that put no code on a line.
_NO_CODE = frozenset(
    {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENCODING, tokenize.ENDMARKER,
    }
)  # fmt: skip


def _code_lines(file: Path) -> int:
    """Neither blank, nor of a comment or docstring alone."""
    lines: set[int] = set()
    with file.open("rb") as source:
        before = tokenize.NEWLINE
        for token in tokenize.tokenize(source.readline):
            # A string that is a whole statement.
            is_docstring = token.type == tokenize.STRING and before in _NO_CODE
            if token.type not in _NO_CODE and not is_docstring:
                lines |= {*range(token.start[0], token.end[0] + 1)}
            before = token.type
    return len(lines)


def static_rows(tree: Structure) -> Iterator[tuple[str, str]]:
    modules = tree.modules.values()
    largest = max(modules, key=lambda module: module.lines)
    name = largest.file.relative_to(tree.root).as_posix()
    yield "product files", f"{len(modules)}"
    code = sum(_code_lines(module.file) for module in modules)
    yield "lines; with code on them", f"{sum(module.lines for module in modules):,}; {code:,}"
    yield "lines of a file, median", f"{median(module.lines for module in modules):g}"
    yield "lines of the largest file", f"{largest.lines} (`{name}`)"
    long = sum(module.lines > LONG_FILE_LINES for module in modules)
    yield f"files over {LONG_FILE_LINES} lines", f"{long}"
    sizes = ", ".join(f"{len(circle)}" for circle in tree.circles)
    yield "import circles (modules in each)", f"{len(tree.circles)}" + (sizes and f" ({sizes})")
    yield f"packages of more than {WIDE_PACKAGE_MODULES} modules", f"{len(tree.wide_packages)}"
    yield "public class names with two meanings", f"{len(tree.ambiguous_classes)}"
    yield "lines under the purity contract", f"{tree.pure_lines}"


def public_rows(root: Path) -> Iterator[tuple[str, str]]:
    yield (
        "public paths, of those listed today",
        _run(root, "-P", f"{ROOT / 'tests/public_paths.py'}"),
    )


def traced_rows(root: Path) -> Iterator[tuple[str, str]]:
    traced = json.loads(_run(root, "-P", f"{ROOT / 'benchmarks/traced_calls.py'}"))
    for operation, figures in traced.items():
        for name, counted in figures.items():
            shown = " / ".join(f"{figure:g}" for figure in counted)
            yield f"`{operation}`: files / calls / moves, {name}", shown


def collected_rows(root: Path) -> Iterator[tuple[str, str]]:
    found = _run(root, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests")
    yield "collected tests", f"{sum('::' in line for line in found.splitlines())}"


def _run(root: Path, *arguments: str) -> str:
    """Of this Python with the code of that checkout, also where another one is installed."""
    path = os.pathsep.join([str(root), str(root / "jepsen-like")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.structure")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="another tree than this one")
    parser.add_argument("--collect", action="store_true", help="count the tests, too (slow)")
    parser.add_argument("--static", action="store_true", help="read only: run none of that code")
    options = parser.parse_args()
    root = options.checkout.resolve()
    tree = Structure(root)
    rows = [*static_rows(tree)]
    rows += [] if options.static else [*public_rows(root), *traced_rows(root)]
    rows += collected_rows(root) if options.collect else []
    print("| what | measured |", "|---|---|", sep="\n")  # noqa: T201
    print(*(f"| {what} | {measured} |" for what, measured in rows), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
