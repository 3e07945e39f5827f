"""`raftmq dlq`: what is refused before a broker is asked, and where there is nothing (A12.5)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.letters.letter_source import LetterFilter, filter_of, letter_object
from raftmq.cli.main import main
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import letter_headers, read_letter
from tests.unit.client.administration.served import serve_bureau


def run(line: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["dlq", *line.split(), *options])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show billing --since soon", "--since: 'soon' is no time"),
        ("show billing --until 5", "--until: '5' lies in the first years"),
        ("purge billing --before soon --yes", "--before: 'soon' is no time"),
        ("purge billing", "add --yes"),
        ("show", "Missing argument 'GROUP'"),
        ("show billing -n 0", "-n"),
        ("redrive billing -n 0", "-n"),
        ("redrive billing --to-topic a/b", "topic name 'a/b'"),
        ("redrive billing --to-topic __dead.billing", "would lose their origin"),
        ("redrive billing --error=", "--error is empty: leave it out for all"),
    ],
)
def test_what_is_refused(line: str, words: str) -> None:
    """Without asking anybody."""
    result = run(line, "-b", "127.0.0.1:1") if " " in line else run(line)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


@pytest.mark.parametrize("line", ["list", "list -o json"])
def test_nothing_was_set_aside(line: str) -> None:
    """That is no error."""
    with serve_bureau() as (_bureau, address):
        result = run(line, "-b", str(address))
    assert (result.exit_code, result.stdout) == (0, "")
    assert ("no dead letters" in result.stderr) == ("json" not in line)


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (LetterFilter(), True),
        (LetterFilter("TIMEOUT"), True),
        (LetterFilter("refused"), False),
        (LetterFilter(since=1_000), True),
        (LetterFilter(since=1_001), False),
        (LetterFilter(until=1_000), False),
        (LetterFilter("timeout", since=0, until=1_001), True),
        (filter_of("timeout", "@-1h"), False),
    ],
)
def test_which_are_meant(wanted: LetterFilter, is_meant: bool) -> None:
    """By a part of the error, whatever its capitals, and by when they were set aside."""
    record = ConsumerRecord("__dead.g", 0, 0, 1_000, None, None, ())
    letter = read_letter(letter_headers(record, "g", attempts=1, error="Timeout: bank"))
    assert wanted.passes(record, letter) == is_meant


def test_bytes_that_are_no_text() -> None:
    """Stand in base64; headers of raftmq are fields."""
    source = ConsumerRecord("orders", 3, 7, 5, b"\xff", b"\xfe", (("h", b"\xfd"),), ("eu",))
    headers = letter_headers(source, "g", attempts=2, error="E")
    record = ConsumerRecord("__dead.g", 0, 0, 9, b"\xff", b"\xfe", headers, ("eu",))
    found = letter_object(record, read_letter(record.headers))
    assert json.loads(json.dumps(found)) == {
        "partition": 0,
        "offset": 0,
        "timestamp": 9,
        "origin": {"topic": "orders", "partition": 3, "offset": 7, "timestamp": 5},
        "attempts": 2,
        "error": "E",
        "group": "g",
        "redriven": 0,
        "key_base64": "/w==",
        "value_base64": "/g==",
        "headers": [{"name": "h", "value_base64": "/Q=="}],
        "tags": ["eu"],
    }
