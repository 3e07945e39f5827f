"""The columns of the source: what Spark is told, and what Arrow batches have to look like."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidConfig

pa = pytest.importorskip("pyarrow")

from spark_io.schema import COLUMNS, arrow_schema, ddl, spark_type  # noqa: E402

PLAIN = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)


def problems_of(*chosen: tuple[str, str, bool]) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        arrow_schema(chosen)
    return caught.value.problems


def test_the_schema_in_the_words_of_spark() -> None:
    """Kafka's columns, and two more where they are asked for."""
    assert ddl() == PLAIN
    headers = ", headers array<struct<key:string,value:binary>>"
    assert ddl(include_headers=True) == PLAIN + headers
    assert ddl(include_headers=True, include_tags=True) == PLAIN + headers + ", tags array<string>"


def test_the_schema_of_arrow() -> None:
    """As Spark makes it of that, in microseconds of UTC, and everything nullable."""
    schema = arrow_schema(include_headers=True, include_tags=True)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
            ("tags", pa.list_(pa.field("element", pa.string()))),
        ]
    )
    assert schema.field("tags").type.value_field.name == "element"
    assert arrow_schema().names == schema.names[:7]


def test_spark_reads_the_words_as_the_same_types() -> None:
    """Its own parser of types, and its own way to Arrow."""
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    header = StructType().add("key", StringType()).add("value", BinaryType())
    types = [
        *(BinaryType(), BinaryType(), StringType(), IntegerType(), LongType()),
        *(TimestampType(), IntegerType(), ArrayType(header), ArrayType(StringType())),
    ]
    assert [each.simpleString() for each in types] == [each.spark_type for each in COLUMNS]
    for ours, theirs in zip(COLUMNS, types, strict=True):
        assert ours.arrow_type == to_arrow_type(theirs, timezone="UTC")


def test_chosen_columns() -> None:
    """In their order; what is never null may be said to be so."""
    schema = arrow_schema([("offset", "bigint", False), ("value", "binary", True)])
    assert schema.names == ["offset", "value"]
    assert [field.nullable for field in schema] == [False, True]
    everything = [(column.name, column.spark_type, True) for column in COLUMNS]
    assert arrow_schema(everything) == arrow_schema(include_headers=True, include_tags=True)


def test_columns_that_cannot_be_chosen() -> None:
    """All problems at once, each with its column, and what there is."""
    twice, unknown, wrong, null = problems_of(
        ("valeu", "binary", True),
        ("key", "string", True),
        ("timestamp", "timestamp", False),
        ("offset", "bigint", True),
        ("offset", "bigint", True),
    )
    assert "no column 'valeu'" in unknown
    assert PLAIN in unknown
    assert wrong == "column key is binary, and cannot be read as string"
    assert null == "column timestamp may be null: leave out NOT NULL"
    assert twice == "column offset is chosen twice"


def test_no_columns_at_all() -> None:
    """Arrow could not say how many rows there are."""
    [problem] = problems_of()
    assert problem.startswith("the schema has no columns: choose some of key binary")


@pytest.mark.parametrize(
    ("arrow_type", "told"),
    [
        (pa.large_binary(), "binary"),
        (pa.large_string(), "string"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.struct([("a", pa.list_(pa.float64()))]), "struct<a:array<double>>"),
        (pa.decimal128(10, 2), "decimal128(10, 2)"),
    ],
)
def test_types_in_the_words_of_spark(arrow_type: pa.DataType, told: str) -> None:
    """Also those that no column can have: messages name them."""
    assert spark_type(arrow_type) == told
