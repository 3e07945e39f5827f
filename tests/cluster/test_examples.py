"""Every program for a cluster under examples/, and the one in the README, does what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from raftmq import testing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).parents[2]
SECONDS_MAX = 60.0
PAYMENTS_SECONDS_MAX = 300.0  # three brokers of its own, each kill waits until all are in sync
SAYS = {
    "quickstart": [r"Ada: partition \d, offset \d", r"read 'hello, Grace' from partition \d"],
    "plain_script": [r"^sent 1000, 0 failed$", r"^read [12]000$"],
    "columns": [r"^sent 200000 records in \d+ runs", r"^read 200000 records, \d+ bytes"],
    "replay": [r"b'16', \d\d:\d\d$", r"^two before: b'14'$", r"goes on: b'15'$"],
    "rerun_safely": [
        r"^it dies after 4\d\d of 1000 rows$",
        r"^the second run: 4\d\d skipped, 5\d\d sent$",
        r"^ProducerFenced: .*another",
        r"^ReplayMismatch: .*higher generation",
        r"^1000 rows, each of them once$",
    ],
    "outbox": [
        r"^the relay dies with version 1 sent$",
        r"^the relay dies with version 2 committed$",
        r"^version 2 was committed before: nothing is sent$",
        r"^27 orders, each of them once$",
    ],
    "work_queue": [
        r"^399 of 400 jobs are done$",
        r"^the jobs of 20 of 20 customers were done in their order$",
        r"^job 8 was tried [3-6] times and is set aside$",
    ],
    "retries": [
        r"^the queue is empty, [1-9]\d* jobs wait for their next attempt$",
        r"^the bank is back: 199 of 200 jobs are done$",
        r"^[1-9]\d* jobs came back from __retry.charging$",
        r"^the stolen card was tried 5 times and is set aside$",
    ],
    "worker_pool": [
        r"^all 60 jobs are done$",
        r"^worker \d+ ends in order after [1-9]\d* jobs$",
        r"^set aside: one\+two, b\"attempt 3: invalid literal for int",
    ],
    "delayed_jobs": [
        r"^\d+ jobs wait$",
        r"^the courier answers when he is asked for the 4th time$",
        r"^given back: 0, 3, 4; 0 too early$",
        r"^who pays now is too late: delivered$",
    ],
    "priorities": [
        r"^280 jobs are done, urgent ones were sent last$",
        # Four of five; each time that one of them has no job in hand may be a turn more or less.
        r"^both waited for (9\d|10\d) turns, urgent jobs had (79|80|81)% of them$",
    ],
    "parallel_load": [
        r"^part 3 is written again: a worker has failed$",
        r"^load \d+ is committed: 8000 rows$",
        r"^load \d+ was committed before: 8000 rows$",
        r"^8000 rows, each of them once$",
        r"^1500 rows in the log are of attempts that do not count$",
    ],
    "dead_letter_desk": [
        r"^113 of 120 invoices are booked$",
        r"^invoice-desk +7 .* BankDownError: the bank does not answer \(4\); ValueError: .* \(3\)$",
        r"^desk.invoices +4$",
        r"^desk.invoices +3$",
        r"^120 invoices, each of them once$",
    ],
    "publish_subscribe": [
        r"^billing, with two members: 300$", r"^shipping, later: 300$", r"beginning: 300$"
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


def _run(*arguments: str, seconds_max: float = SECONDS_MAX) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


@pytest.mark.parametrize("name", SAYS)
def test_an_example(server: Server, name: str) -> None:
    """It ends well, says what it should and complains of nothing, also when it runs again."""
    for _ in range(2):
        done = _run(f"examples/{name}.py", server.bootstrap)
        assert (done.returncode, done.stderr) == (0, "")
        for pattern in SAYS[name]:
            assert re.search(pattern, done.stdout, re.MULTILINE), done.stdout


def test_the_service(server: Server) -> None:
    """examples/service.py answers requests and ends in order; its own tests are in the suite."""
    command = [sys.executable, "-W", "error", "examples/service.py", server.bootstrap, "0"]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        try:
            said = next(line for line in service.stderr if "running on" in line)
            found = re.search(r"http://[\d.:]+", said)
            assert found
            order = json.dumps({"customer": "c-17", "item": "apples"}).encode()
            placed = _request(f"{found[0]}/orders", order)
            page = _request(f"{found[0]}/orders/{placed['partition']}")
        finally:
            service.terminate()
        assert "Traceback" not in service.stderr.read()
    assert page["orders"][placed["offset"]]["item"] == "apples"


def _request(url: str, body: bytes | None = None) -> Any:
    asked = Request(url, body, {"content-type": "application/json"})
    with urlopen(asked, timeout=SECONDS_MAX) as answer:
        return json.load(answer)


def test_payments_are_made_once() -> None:
    """A worker, a leader and a coordinator are killed with -9: each transfer stands once in both
    topics, the sum is what it was, and what was aborted no reader got. (A11.3, A11.4)
    """
    done = _run("examples/payments.py", "--kills", "3", seconds_max=PAYMENTS_SECONDS_MAX)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for pattern in (
        r"^kill -9 of worker \d+",
        r"^kill -9 of broker \d: it led debits-0$",
        r"^kill -9 of broker \d: it coordinated the group bookkeepers$",
        r"^debits: (\d+) bookings of \1 transfers, -[\d,.]+; \d+ more were aborted",
        r"^credits: (\d+) bookings of \1 transfers, \+[\d,.]+; \d+ more were aborted",
        r"^every transfer was booked once$",
    ):
        assert re.search(pattern, done.stdout, re.MULTILINE), done.stdout


def test_the_suite_of_tests() -> None:
    """examples/suite passes as it stands, under pytest-trio, anyio's plugin and neither."""
    done = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/suite")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^13 passed", done.stdout, re.MULTILINE), done.stdout


def test_an_example_without_a_cluster() -> None:
    """One line that names the address."""
    done = _run("examples/plain_script.py", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("Unreachable: ")
    assert "127.0.0.1:1" in done.stderr


def test_the_sdk_in_ten_lines(server: Server) -> None:
    """The README's, as a reader would paste it, and then once more; only the address is another."""
    text = (REPOSITORY / "README.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for offset in range(2):
        done = _run("-c", code.replace("127.0.0.1:9292", server.bootstrap))
        assert (done.returncode, done.stderr) == (0, "")
        at, first, *_ = done.stdout.splitlines()
        assert (at, first) == (f"at offset {offset}", "c-17 two apples")
