"""The folder of a run: written, read again, and told when the run was killed or never began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from jepsen_like.checkers.finding import Finding
from jepsen_like.checkers.verdict import Result, Verdict
from jepsen_like.history.event import encode_line
from jepsen_like.report.folder import RunFolder
from jepsen_like.report.ladder import ladder_of, ladder_table
from jepsen_like.report.surroundings import commit_of
from jepsen_like.settings import BadSettings, RunSettings
from tests.jepsen_like.report.histories import whole_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jepsen_like.history.event import Event

SETTINGS = RunSettings(nemesis=("kill", "pause"), time_limit=40, seed=7)
HISTORY = whole_run(seed=5, seconds=60, operations=200)
CAPABILITIES = {"network": "", "power cuts": "not root"}
PASSED = Verdict(
    result=Result.PASS,
    findings=[Finding("lost-write", 1, 0, False), Finding("duplicate", 3, 0, False)],
    reasons=[],
    not_judged=["unseen: nobody read from the beginning"],
    figures={},
)
FAILED = Verdict(
    result=Result.FAIL,
    findings=[
        Finding("lost-write", 1, 1200, True, [f"key 'a', value {n} is lost" for n in range(10)]),
        Finding("duplicate", 3, 0, False, [], {"copies allowed": 4}),
        Finding("poll-skip", 13, 5, False, ["key 'c': offset 7 is missing"]),
        Finding("unseen", 10, 2, True, ["key 'b', value 9: nobody saw it"]),
    ],
    reasons=[],
    not_judged=[],
    figures={},
)


def pass_all(_: Sequence[Event]) -> Verdict:
    return PASSED


def written(path: Path, verdict: Verdict) -> RunFolder:
    folder = RunFolder(path, is_drawn=False)
    folder.begin(SETTINGS, capabilities=CAPABILITIES)
    folder.write(HISTORY, verdict)
    return RunFolder(path)


def killed(path: Path, events: int) -> RunFolder:
    """It wrote down what it was to do and so many events, and one more half way."""
    folder = RunFolder(path, judge=pass_all, is_drawn=False)
    folder.begin(SETTINGS, capabilities={})
    lines = b"".join(map(encode_line, HISTORY[:events]))
    folder.history_path.write_bytes(lines + b'{"index":')
    return folder


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """With everything that a run leaves behind, also pictures."""
    folder = RunFolder(tmp_path_factory.mktemp("failed"))
    folder.begin(SETTINGS, capabilities=CAPABILITIES)
    folder.write(HISTORY, FAILED)
    return RunFolder(folder.path)


def test_everything_is_there(failed: RunFolder) -> None:
    """What a run leaves behind, and a page that lists all of it."""
    names = {path.name for path in failed.path.iterdir()}
    assert names == {
        "history.jsonl",
        "settings.json",
        "verdict.json",
        "summary.txt",
        "timeline.png",
        "latency.png",
        "nodes",
    }
    page = failed.summary_path.read_text()
    assert all(f"\n  {name} " in page for name in names)


def test_the_page_is_made_again_from_the_files(failed: RunFolder) -> None:
    """Not a letter differs."""
    assert failed.summary() == failed.summary_path.read_text()


def test_the_first_line_is_the_verdict(failed: RunFolder) -> None:
    """With what was found, the most severe first."""
    assert failed.summary().splitlines()[0] == "FAILED: lost-write 1,200, unseen 2"
    assert failed.outcome() == "failed"
    assert failed.headline().startswith("FAILED: lost-write 1,200, unseen 2 (")


def test_findings_have_examples(failed: RunFolder) -> None:
    """A few are shown, the rest is counted; what was looked for and not found is named."""
    page = failed.summary()
    assert "  lost-write: 1,200\n    - key 'a', value 0 is lost\n" in page
    assert "value 4 is lost\n      and 1,195 more\n" in page
    assert "  poll-skip: 5 (allowed)\n" in page
    assert "looked for, and not found: duplicate" in page
    assert "duplicate: copies allowed 4" in page


def test_the_page_tells_how_to_repeat_it(failed: RunFolder) -> None:
    """The command, and what this machine could not do."""
    page = failed.summary()
    assert SETTINGS.command in page
    assert "Not available on this machine\n  power cuts: not root\n" in page
    assert "  network:" not in page


def test_a_run_that_passed(tmp_path: Path) -> None:
    """Says by how many checks, and what nobody looked at."""
    folder = written(tmp_path, PASSED)
    assert folder.outcome() == "passed"
    assert folder.summary().startswith("PASSED: nothing wrong, by 2 checks\n  queue on 3 nodes")
    assert "not looked at: unseen: nobody read from the beginning" in folder.summary()


def test_how_late_scheduled_records_were(tmp_path: Path) -> None:
    """Of a run that had any; what nobody could measure is left out (A12.2)."""
    counts = {"acknowledged": 1200, "delivered": 1100, "cancelled": 60, "not due": 40}
    late = {"ms late p50": 120, "ms late p99": 1800, "ms late max": 2300}
    figures = {f"scheduled records {what}": count for what, count in counts.items()} | late
    page = written(tmp_path, msgspec.structs.replace(PASSED, figures=figures)).summary()
    told = "1,200 scheduled records acknowledged, 1,100 delivered, 60 cancelled, 40 not due"
    assert (
        f"\n  {told}\n  late, as readers saw it: p50 120 ms, p99 1,800 ms, max 2,300 ms\n" in page
    )
    assert "where nothing was broken" not in page
    assert "scheduled records" not in written(tmp_path / "other", PASSED).summary()


def test_what_groups_with_retries_did(tmp_path: Path) -> None:
    """Of a run that had any (A12.4)."""
    counts = {"handled": 2500, "returns": 400, "letters": 1, "crashes": 7}
    figures = {f"retries {what}": count for what, count in counts.items()}
    page = written(tmp_path, msgspec.structs.replace(PASSED, figures=figures)).summary()
    told = "2,500 records handled by groups with retries, 400 came back, 1 dead letter, 7 crashes"
    assert f"\n  {told} of members\n" in page
    assert "groups with retries" not in written(tmp_path / "other", PASSED).summary()


def test_a_run_that_proves_nothing(tmp_path: Path) -> None:
    """Nothing was found because nothing happened: the first line says why."""
    verdict = msgspec.structs.replace(
        PASSED, result=Result.UNKNOWN, reasons=["no client did anything"]
    )
    page = written(tmp_path, verdict).summary()
    assert page.startswith("PROVES NOTHING: no client did anything\n")


def test_a_history_that_was_recorded_stays(tmp_path: Path) -> None:
    """The recorder wrote it, event by event."""
    folder = RunFolder(tmp_path, is_drawn=False)
    folder.begin(SETTINGS, capabilities={})
    folder.history_path.write_bytes(b"as it was\n")
    folder.write(HISTORY, PASSED)
    assert folder.history_path.read_bytes() == b"as it was\n"


def test_a_killed_run_is_judged_when_somebody_asks(tmp_path: Path) -> None:
    """Nothing was found in what there is; but nobody looked at the end, so it proves nothing."""
    folder = killed(tmp_path, 300)
    assert folder.summary().startswith("PROVES NOTHING: the run did not come to its end")
    assert folder.outcome() == "unknown"
    assert folder.summary_path.exists()
    assert RunFolder(tmp_path).summary() == folder.summary()


def test_a_killed_run_that_found_something_failed(tmp_path: Path) -> None:
    """What is wrong stays wrong, however the run ended."""
    killed(tmp_path, 300)
    folder = RunFolder(tmp_path, judge=lambda _: FAILED, is_drawn=False)
    assert folder.outcome() == "failed"


def test_half_a_verdict_is_none(tmp_path: Path) -> None:
    """The run was killed while it wrote it down: it is judged again."""
    folder = killed(tmp_path, len(HISTORY))
    folder.verdict_path.write_bytes(b'{"result": "fa')
    assert folder.outcome() == "passed"


def test_a_run_that_was_killed_at_its_end_is_whole(tmp_path: Path) -> None:
    """All was read at the end; only the verdict is missing."""
    assert killed(tmp_path, len(HISTORY)).outcome() == "passed"


def test_no_run_at_all(tmp_path: Path) -> None:
    """A ladder goes on; somebody who asks for the page is told that there is none."""
    folder = RunFolder(tmp_path / "nowhere")
    assert folder.outcome() == "unknown"
    assert folder.headline().startswith("PROVES NOTHING: there is no run in")
    with pytest.raises(FileNotFoundError, match=r"settings\.json"):
        folder.summary()


def test_settings_that_are_none(tmp_path: Path) -> None:
    """The message names the file."""
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(BadSettings, match=r"settings\.json.*is this the folder of a run"):
        RunFolder(tmp_path).summary()


def test_a_folder_of_an_older_version(tmp_path: Path) -> None:
    """Its settings say "strokes"."""
    written(tmp_path, PASSED)
    path = tmp_path / "settings.json"
    told = msgspec.json.decode(path.read_bytes())
    del told["settings"]["fault_events"]
    told["settings"]["strokes"] = 12
    path.write_bytes(msgspec.json.encode(told))
    content = RunFolder(tmp_path).read()
    assert content.surroundings.settings == msgspec.structs.replace(SETTINGS, fault_events=12)


def test_no_git_no_commit(tmp_path: Path) -> None:
    """An installed package lies in no checkout."""
    assert commit_of(tmp_path) == ""
    assert commit_of(tmp_path / "gone") == ""


def test_a_ladder_of_runs(failed: RunFolder, tmp_path: Path) -> None:
    """One failed, one passed, one left nothing behind: the totals say the worst."""
    runs = [failed, written(tmp_path / "good", PASSED), RunFolder(tmp_path / "gone")]
    table = ladder_of(runs).runs()
    first, second, third = table.rows
    assert first[1:5] == ["queue", "kill, pause", "7", "59"]
    assert first[-2:] == ["1,202", "FAILED"]
    assert (second[0], second[-1]) == ("good", "PASSED")
    assert (third[0], third[-1]) == ("gone", "PROVES NOTHING")
    assert table.footer[0] == "3 runs"
    assert table.footer[-2:] == ["1,202", "FAILED"]
    assert int(table.footer[6]) == 2 * int(first[6])


def test_a_ladder_shows_recovery_of_all_runs(failed: RunFolder) -> None:
    """Twice the same run: each fault is there twice, in one table, as text and as Markdown."""
    once, twice = (ladder_of([failed] * times).recovery().rows for times in (1, 2))
    assert [2 * int(row[2]) for row in once] == [int(row[2]) for row in twice]
    assert "after healing: all replicas in sync" in ladder_of([failed]).as_text()
    assert "| fault | whom |" in ladder_table([failed])


def test_a_ladder_of_nothing(tmp_path: Path) -> None:
    """All runs died at once: a table, and no recovery."""
    page = ladder_table([RunFolder(tmp_path / "gone")])
    assert "PROVES NOTHING" in page
    assert "| fault | whom |" not in page
