"""`raftmq group`, called within this process, and one broker that knows groups."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from click.testing import CliRunner, Result

from raftmq.cli.main import main
from tests.unit.client.administration.groups.registry import Registry, prepared
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = ("u", 0), ("u", 1)  # logs from 2 to 10, and from 0 to 5


class Here(NamedTuple):
    registry: Registry
    bootstrap: str

    def run(self, line: str, answer: str | None = None) -> Result:
        arguments = ["-b", self.bootstrap, "group", *line.split()]
        return CliRunner().invoke(main, arguments, input=answer)

    def rows(self, line: str) -> list[dict[str, Any]]:
        result = self.run(f"{line} -o json")
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(each) for each in result.stdout.splitlines()]


@contextmanager
def open_here() -> Iterator[Here]:
    """One broker with topics "t" and "u"; group "billing" is empty, and has offsets."""
    made: list[Registry] = []
    with serve_bureau(lambda bureau: made.append(prepared(bureau))) as (_, address):
        made[0].add("billing")
        made[0].commit("billing", {FIRST: 5, SECOND: 4})
        yield Here(made[0], str(address))
