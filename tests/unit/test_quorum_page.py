"""What docs/OPERATING-QUORUM.md shows is what runs; that it runs is shown in tests/cluster."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from raftmq.cli.main import main
from raftmq.metadata.raft.background import REFUSED_NAME

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "OPERATING-QUORUM.md"
PROGRAM = ROOT / "examples" / "quorum_program.py"


def test_the_program_on_the_page_is_the_example() -> None:
    """All of it, from the first import on."""
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert shown == PROGRAM.read_text()[PROGRAM.read_text().index("import sys\n") :]


def test_the_commands_on_the_page_exist() -> None:
    """Each is known, and understands its options, as far as that shows without a quorum."""
    commands = re.findall(r"^    \$ \.venv/bin/raftmq (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        result = CliRunner().invoke(main, [*command.split(), "--help"])
        assert (result.exit_code, result.stderr) == (0, ""), command


def test_the_page_names_files_as_they_are_named() -> None:
    """An operator looks for it."""
    assert f"`{REFUSED_NAME}`" in PAGE.read_text()


def test_readme_leads_to_the_page() -> None:
    """And so does the line on which it is looked for."""
    assert "](docs/OPERATING-QUORUM.md)" in (ROOT / "README.md").read_text()
