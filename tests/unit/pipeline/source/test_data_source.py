"""The source takes settings from the environment of the JVM, and changes a process of Spark only when called."""

import sys
import traceback
from types import SimpleNamespace

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StructField, StructType

from driftq.pipeline.source.data_source import BatchReader, DriftqSource
from driftq.pipeline.source.row_filters import from_time
from driftq.pipeline.source.stream_reader import StreamReader

_SEQ = StructType([StructField("seq", LongType())])


def test_readers_take_no_filters_so_that_no_setting_of_spark_changes_a_result() -> None:
    """Spark calls `pushFilters` of every reader if spark.sql.python.filterPushdown.enabled is true."""
    reader = DriftqSource({"topic": "t"}).reader(_SEQ)
    assert type(reader).pushFilters is DataSourceReader.pushFilters


def test_a_stream_from_a_time_delivers_nothing_older() -> None:
    source = DriftqSource({"topic": "t", "startingTimestamp": "5000"})
    stream = source.streamReader(_SEQ)
    assert isinstance(stream, StreamReader)
    assert stream._task.tests == from_time(5000)


@pytest.mark.parametrize(
    ("options", "server"), [({}, "http://127.0.0.1:5"), ({"server": "http://127.0.0.1:6"}, "http://127.0.0.1:6")]
)
def test_the_server_is_that_of_the_session_unless_an_option_names_one(
    options: dict[str, str], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTQ_SESSION_SERVER", "http://127.0.0.1:5")
    reader = DriftqSource({"topic": "t", **options}).reader(_SEQ)
    assert isinstance(reader, BatchReader)
    assert reader._asked.server == server


@pytest.mark.parametrize("call", ["reader", "writer"])
def test_a_process_of_spark_is_silenced_when_spark_calls_the_source(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark sends the source from one process to the next without making it again."""
    source = DriftqSource({"topic": "t"})
    program = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"), traceback=traceback)
    monkeypatch.setitem(sys.modules, "__main__", program)
    if call == "reader":
        source.reader(_SEQ)
    else:
        source._target()
    assert program.traceback is not traceback
