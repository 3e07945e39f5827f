"""Filtered reads against reads of everything: whatever is done to a log, what passes is read, at
its offsets, and nothing else (A12.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import rule

from raftmq.model import Compression, RecordFormat
from raftmq.partition.filtered_read import FilterLimits
from raftmq.tag_filter import parse
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import read_filtered, records_of
from tests.property.test_log_model import LogAgainstList

TAGS = ["eu", "us", "paid", "test"]
FILTERS = [
    parse(text) for text in ("eu", "!eu", "paid & (eu | us) & !test", "x", "!x", "us | test")
]


def tags_of(value: bytes) -> tuple[str, ...]:
    """The tags of a record stand in its value as well."""
    told = value.split(b"|")[0].decode()
    return tuple(told.split(",")) if told else ()


class FilteredAgainstAll(LogAgainstList):
    """Batches with and without tags, of all encodings; many tag sets in some."""

    def _batch(self, data: st.DataObject) -> tuple[bytes, list[tuple[bytes, int]]]:
        some = st.lists(st.sampled_from(TAGS), max_size=2, unique=True)
        tags = data.draw(st.lists(some, min_size=1, max_size=5))
        if data.draw(st.integers(0, 9)) == 9:  # so many that there is a mixed chunk
            tags += [[f"{number:02}", TAGS[number % 4]] for number in range(70)]
        record_format = self.log.config.record_format
        if record_format is RecordFormat.KAFKA:
            tags = [[] for _ in tags]
        values = [",".join(sorted(each)).encode() + b"|" + b"x" * 40 for each in tags]
        timestamps = [self.clock + index for index in range(len(values))]
        self.clock += len(values)
        batch = encode_batch(
            values=values,
            timestamps=timestamps,
            tags=None if record_format is RecordFormat.KAFKA else tags,
            has_check=data.draw(st.integers(0, 4)) > 0,  # else of an earlier version
            record_format=record_format,
            compression=data.draw(st.sampled_from([Compression.NONE, Compression.GZIP])),
        )
        return bytes(batch), list(zip(values, timestamps, strict=True))

    @rule(record_format=st.sampled_from(RecordFormat))
    def change_format(self, record_format: RecordFormat) -> None:
        self.log.config = replace(self.log.config, record_format=record_format)

    @rule(data=st.data(), asked=st.sampled_from(FILTERS), units_max=st.integers(1, 200))
    def read_what_passes(self, data: Any, asked: Any, units_max: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.sampled_from([self.end, data.draw(st.integers(offset, self.end))]))
        limits = FilterLimits(data.draw(st.integers(1, 3000)), units_max, 3)
        read = read_filtered(self.log, offset, asked, limits, end_offset=limit)
        # Only a batch that ends behind the limit is not read.
        behind = [end for end in self._batch_ends() if end > read.end_offset]
        assert read.end_offset == limit or behind[0] > limit
        first = read.pieces[0].base_offset if read.pieces else read.end_offset
        assert first <= offset
        assert [(one.offset, one.value, one.timestamp) for one in records_of(read)] == [
            record
            for record in self.records
            if first <= record[0] < read.end_offset and asked.matches(tags_of(record[1]))
        ]

    def _batch_ends(self) -> list[int]:
        return [found.header.end_offset for each in self.log.segments for found in each.walk_all()]


TestFilteredAgainstAll = FilteredAgainstAll.TestCase
TestFilteredAgainstAll.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, phases=[Phase.generate, Phase.shrink]
)
