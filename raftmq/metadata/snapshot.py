"""Encodes a metadata image as snapshot slices, and decodes it, checking all counts.

Owns what a snapshot contains: `hosted`, `tallies`, `moving`, `topic_ids` and `transaction_ids` are
derived and rebuilt, and `changes` is empty in a decoded image. Each slice is one step of a
generator and takes about a millisecond, since the encoding worker thread holds the GIL, and so the
event loop, meanwhile. Must not trust its input: bytes that do not decode, or counts that do not
match, are CorruptJournal.
`image_format` owns the byte format.
"""

from __future__ import annotations

from itertools import groupby, islice, starmap
from typing import TYPE_CHECKING

from immutables import Map
from msgspec.structs import force_setattr

from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import EMPTY_IMAGE, MetadataImage, OriginState, Tallying
from raftmq.metadata.image_format import (
    FORMAT_VERSION,
    BrokersSection,
    EndSection,
    GroupRow,
    GroupsSection,
    Header,
    OffsetRow,
    OffsetsRow,
    OffsetsSection,
    OriginRow,
    OriginsSection,
    PartitionsRow,
    PartitionsSection,
    PlanRow,
    PlansSection,
    ResultRow,
    ResultsSection,
    TopicsSection,
    TransactionRow,
    TransactionsSection,
    decode_header,
    decode_section,
    join,
    pack,
    refuse,
    slices_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from immutables import MapMutation

    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.image import PartitionState
    from raftmq.metadata.image_format import AnySection

# Partitions or offsets in one row; a large topic or group takes several rows. A row is encoded in
# one piece, so it is kept well below a section of 24 KiB.
ROW_ITEMS_MAX = 128

# Image to bytes


def encode_image(image: MetadataImage) -> Iterator[bytes]:
    """The slices, made lazily one by one; each at most SLICE_BYTES_MAX."""
    yield from slices_of(_header_of(image))
    yield from pack(BrokersSection, image.brokers.values())
    yield from pack(TopicsSection, image.topics.values())
    yield from pack(PartitionsSection, _partition_rows(image))
    yield from pack(GroupsSection, (GroupRow(name, group) for name, group in image.groups.items()))
    yield from pack(OffsetsSection, _offset_rows(image))
    yield from pack(TransactionsSection, starmap(TransactionRow, image.transactions.items()))
    yield from pack(PlansSection, (PlanRow(*key, plan) for key, plan in image.moves.items()))
    yield from pack(OriginsSection, _origin_rows(image))
    yield from pack(ResultsSection, _result_rows(image))
    yield from slices_of(
        EndSection(_offset_count(image), _result_count(image), image.deleted_topics)
    )


def _header_of(image: MetadataImage) -> Header:
    return Header(
        FORMAT_VERSION,
        image.version,
        image.feature_level,
        image.next_producer_id,
        image.slots,
        brokers=len(image.brokers),
        topics=len(image.topics),
        partitions=len(image.partitions),
        groups=len(image.groups),
        groups_with_offsets=len(image.offsets),
        origins=len(image.origins),
        transactions=len(image.transactions),
        moves=len(image.moves),
    )


def _partition_rows(image: MetadataImage) -> Iterator[PartitionsRow]:
    partitions = image.partitions
    for topic_id, topic in image.topics.items():
        for first in range(0, topic.partition_count, ROW_ITEMS_MAX):
            numbers = range(first, min(first + ROW_ITEMS_MAX, topic.partition_count))
            states = tuple([partitions[PartitionId(topic_id, number)] for number in numbers])
            yield PartitionsRow(topic_id, first, states)


def _offset_rows(image: MetadataImage) -> Iterator[OffsetsRow]:
    """Rows by topic. The offsets of a group come in no order: ROW_ITEMS_MAX at a time are grouped
    by topic, so a topic may have several rows, and no pass sorts all offsets of a group.
    """
    for group, offsets in image.offsets.items():
        rest = iter(offsets.items())
        while some := list(islice(rest, ROW_ITEMS_MAX)):
            by_topic: dict[bytes, list[OffsetRow]] = {}
            for (topic_id, partition), committed in some:
                by_topic.setdefault(topic_id, []).append(OffsetRow(partition, committed))
            for topic_id, rows in by_topic.items():
                yield OffsetsRow(group, topic_id, tuple(rows))


def _origin_rows(image: MetadataImage) -> Iterator[OriginRow]:
    for origin, state in image.origins.items():
        yield OriginRow(origin, state.epoch, state.highest)


def _result_rows(image: MetadataImage) -> Iterator[ResultRow]:
    """One by one: a result may be as large as a command."""
    for origin, state in image.origins.items():
        for sequence, result in state.results.items():
            yield ResultRow(origin, sequence, result)


def _offset_count(image: MetadataImage) -> int:
    return sum(len(offsets) for offsets in image.offsets.values())


def _result_count(image: MetadataImage) -> int:
    return sum(len(origin.results) for origin in image.origins.values())


# Bytes to image


def decode_image(slices: Iterable[bytes]) -> MetadataImage:
    """The image whose slices these are; its `changes` are empty.

    Raises:
        CorruptJournal: they are not the slices of one image, or of a format that is too new.
    """
    sections = join(slices)
    reader = _ImageReader(decode_header(next(sections, b"")))
    end = None
    for number, data in enumerate(sections, 1):
        if end is not None:  # two snapshots in one file, or a damaged one
            refuse(f"section {number} stands behind the end")
        section = decode_section(number, data)
        if isinstance(section, EndSection):
            end = section
        else:
            reader.read(section)
    if end is None:  # cut off between two sections
        refuse("the end is missing")
    return reader.finish(end)


class _ImageReader:
    """Builds an image from its sections.

    Equal partition ids and equal replica sets become one object: an image with a million offsets is
    a quarter smaller then, and the garbage collector has half the objects to traverse.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._brokers = EMPTY_IMAGE.brokers.mutate()
        self._topics = EMPTY_IMAGE.topics.mutate()
        self._topic_ids = EMPTY_IMAGE.topic_ids.mutate()
        self._partitions = EMPTY_IMAGE.partitions.mutate()
        self._hosted: dict[int, MapMutation[PartitionId, None]] = {}
        self._tallying = Tallying()
        self._groups = EMPTY_IMAGE.groups.mutate()
        self._offsets = EMPTY_IMAGE.offsets.mutate()
        self._transactions = EMPTY_IMAGE.transactions.mutate()
        self._transaction_ids = EMPTY_IMAGE.transaction_ids.mutate()
        self._moves = EMPTY_IMAGE.moves.mutate()
        self._moving = EMPTY_IMAGE.moving.mutate()
        self._origins: dict[int, OriginRow] = {}
        self._results: dict[int, MapMutation[int, AnyResult]] = {}
        self._keys: dict[bytes, dict[int, PartitionId]] = {}  # by topic and number
        self._broker_sets: dict[tuple[int, ...], tuple[int, ...]] = {}

    def read(self, section: AnySection) -> None:
        match section:
            case BrokersSection(rows):
                self._brokers.update((row.broker_id, row) for row in rows)
            case TopicsSection(rows):
                self._topics.update((row.topic_id, row) for row in rows)
                self._topic_ids.update((row.name, row.topic_id) for row in rows)
            case PartitionsSection(rows):
                for partitions in rows:
                    self._read_partitions(partitions)
            case GroupsSection(rows):
                self._groups.update((row.name, row.state) for row in rows)
            case OffsetsSection(rows):
                self._read_offsets(rows)
            case TransactionsSection(rows):
                self._read_transactions(rows)
            case PlansSection(rows):
                self._read_plans(rows)
            case OriginsSection() | ResultsSection():
                self._read_memory(section)

    def _read_partitions(self, row: PartitionsRow) -> None:
        topic = self._topics.get(row.topic_id)
        if topic is None:  # its section comes before those of its partitions
            refuse(f"partitions of topic {row.topic_id.hex()}, which is not there")
        # Decoded numbers are not trusted.
        if not 0 <= row.first <= topic.partition_count - len(row.states):
            refuse(f"topic {topic.name} has {topic.partition_count} partitions, not {row.first}+")
        keys, partitions = self._keys.setdefault(topic.topic_id, {}), self._partitions
        for number, state in enumerate(row.states, row.first):
            if number in keys:  # a damaged snapshot that passed its CRC, or a bug in the writer
                refuse(f"partition {number} of topic {topic.name} stands there twice")
            key = keys[number] = PartitionId(topic.topic_id, number)
            self._share_broker_sets(state)
            partitions[key] = state
            if state.is_moving:
                self._moving[key] = state.adding
            self._tallying.add(state, trusts_page_cache=topic.trusts_page_cache)
            for broker_id in state.replicas:
                self._hosted_by(broker_id)[key] = None

    def _hosted_by(self, broker_id: int) -> MapMutation[PartitionId, None]:
        if broker_id not in self._hosted:
            self._hosted[broker_id] = Map().mutate()
        return self._hosted[broker_id]

    def _share_broker_sets(self, state: PartitionState) -> None:
        """Changes a frozen struct in place: it was just decoded, and no other code has it yet."""
        shared = self._broker_sets.setdefault
        force_setattr(state, "replicas", shared(state.replicas, state.replicas))
        force_setattr(state, "isr", shared(state.isr, state.isr))

    def _read_offsets(self, rows: tuple[OffsetsRow, ...]) -> None:
        for group, its_rows in groupby(rows, lambda row: row.group):
            offsets = self._offsets.get(group, Map()).mutate()
            for row in its_rows:
                for found in row.offsets:
                    offsets[self._key(row.topic_id, found.partition)] = found.committed
            self._offsets[group] = offsets.finish()

    def _key(self, topic_id: bytes, number: int) -> PartitionId:
        keys = self._keys.setdefault(topic_id, {})
        if number not in keys:
            keys[number] = PartitionId(topic_id, number)
        return keys[number]

    def _read_transactions(self, rows: tuple[TransactionRow, ...]) -> None:
        for row in rows:
            self._transactions[row.transaction_id] = row.state
            for producer_id in row.state.producer_ids():
                self._transaction_ids[producer_id] = row.transaction_id

    def _read_plans(self, rows: tuple[PlanRow, ...]) -> None:
        for row in rows:
            key = self._key(row.topic_id, row.partition)
            if key not in self._partitions:  # as in `_read_partitions`: not trusted
                refuse(f"a move of {key.topic_id.hex()} {key.partition}, which is not there")
            self._moves[key] = row.plan

    def _read_memory(self, section: OriginsSection | ResultsSection) -> None:
        if isinstance(section, OriginsSection):
            self._origins.update((row.origin, row) for row in section.rows)
            return
        for row in section.rows:
            if row.origin not in self._results:
                self._results[row.origin] = Map().mutate()
            self._results[row.origin][row.sequence] = row.result

    def finish(self, end: EndSection) -> MetadataImage:
        header = self._header
        image = MetadataImage(
            version=header.version,
            feature_level=header.feature_level,
            next_producer_id=header.next_producer_id,
            slots=header.slots,
            brokers=self._brokers.finish(),
            topics=self._topics.finish(),
            topic_ids=self._topic_ids.finish(),
            partitions=self._partitions.finish(),
            hosted=Map({broker: keys.finish() for broker, keys in self._hosted.items()}),
            tallies=self._tallying.added_to(EMPTY_IMAGE.tallies),
            moves=self._moves.finish(),
            moving=self._moving.finish(),
            groups=self._groups.finish(),
            offsets=self._offsets.finish(),
            transactions=self._transactions.finish(),
            transaction_ids=self._transaction_ids.finish(),
            origins=self._finish_origins(),
            deleted_topics=end.deleted_topics,
        )
        _check_counts(image, header, end)
        return image

    def _finish_origins(self) -> Map[int, OriginState]:
        """Results without their origin are dropped here; `_check_counts` then misses them."""
        results = {origin: found.finish() for origin, found in self._results.items()}
        return Map(
            {
                row.origin: OriginState(row.epoch, row.highest, results.get(row.origin, Map()))
                for row in self._origins.values()
            }
        )


def _check_counts(image: MetadataImage, header: Header, end: EndSection) -> None:
    """Refuse with all wrong counts in one message."""
    counts = {
        "brokers": (len(image.brokers), header.brokers),
        "topics": (len(image.topics), header.topics),
        "topic names": (len(image.topic_ids), header.topics),
        "partitions": (len(image.partitions), header.partitions),
        "partitions of topics": (_partition_count(image), header.partitions),
        "groups": (len(image.groups), header.groups),
        "groups with offsets": (len(image.offsets), header.groups_with_offsets),
        "offsets": (_offset_count(image), end.offsets),
        "transactions": (len(image.transactions), header.transactions),
        "moves": (len(image.moves), header.moves),
        "origins": (len(image.origins), header.origins),
        "results": (_result_count(image), end.results),
    }
    wrong = [f"{n} {what} instead of {m}" for what, (n, m) in counts.items() if n != m]
    if wrong:
        refuse(", ".join(wrong))


def _partition_count(image: MetadataImage) -> int:
    return sum(topic.partition_count for topic in image.topics.values())
