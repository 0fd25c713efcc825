"""Topics for the tests of the pipeline: made, filled and read over HTTP."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import StreamingQueryException

from driftq.pipeline import PipelineError
from tests.support.process import ServerProcess
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

PATIENCE_S = 300
_NUMBERS = count(1)
_TRIES = 4
_TOO_BUSY = "failed to connect back"
"""Spark gives the process of a streaming source ten seconds to come up, and a busy machine may need more."""


def ask(server: ServerProcess, method: str, path: str, value: object = None) -> dict[str, Any]:
    """A call that must succeed."""
    status, answer = server.ask(method, path, value)
    assert status < 300, (status, answer)
    return answer


def fill(server: ServerProcess, topic: str, numbers: Iterable[int], *, size: int = 1000, **more: Any) -> None:
    """Records `{"n": number}`, with tag `t<last digit>`, in writes of so many."""
    waiting = list(numbers)
    for at in range(0, len(waiting), size):
        records = [{"data": {"n": n}, "tag": f"t{n % 10}", **more} for n in waiting[at : at + size]]
        ask(server, "POST", f"/v0/topics/{topic}?return_seqs=false", {"records": records})


def table(spark: "SparkSession", topic: str, **options: str) -> "DataFrame":
    """A batch read."""
    reader: DataFrameReader = spark.read.format("driftq").option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def numbers(frame: "DataFrame") -> list[int]:
    """The numbers of its records, in order of their seqs."""
    return [int(row.n) for row in frame.selectExpr("seq", "data:n as n").orderBy("seq").collect()]


def finished(start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
    """A query that ends by itself, when it has; started again where the machine was too busy for its first step."""
    for _ in range(_TRIES - 1):
        query = start()
        try:
            assert query.awaitTermination(PATIENCE_S)
        except StreamingQueryException as failure:
            if _TOO_BUSY not in str(failure):
                raise
        else:
            return query
    query = start()
    assert query.awaitTermination(PATIENCE_S)
    return query


def patiently(run: Callable[[], T]) -> T:
    """What a job gives; run again where the machine was too busy for its first step."""
    for _ in range(_TRIES - 1):
        try:
            return run()
        except PipelineError as failure:
            if _TOO_BUSY not in str(failure):
                raise
    return run()


def fresh(name: str = "topic") -> str:
    """The name of a topic that no other test of this process has."""
    return f"{name}-{next(_NUMBERS)}"


def write(server: ServerProcess, topic: str, data: list[Any], **more: Any) -> None:
    """Records of these data, each with the same further fields."""
    for at in range(0, len(data), 10_000):
        records = [{"data": value, **more} for value in data[at : at + 10_000]]
        ask(server, "POST", f"/v0/topics/{topic}?return_seqs=false", {"records": records})


def records(server: ServerProcess, topic: str) -> list[dict[str, Any]]:
    """Everything in a topic, in its order."""
    found: list[dict[str, Any]] = []
    place, more = 0, True
    while more:
        asked = {"from_seq": place, "limit": 1000, "max_batch_bytes": 8 << 20, "include_tags": True}
        page = ask(server, "POST", f"/v0/topics/{topic}/diff", asked)
        found += page["records"]
        place, more = page["next_from_seq"], not page["caught_up"]
    return found


def values(server: ServerProcess, topic: str) -> list[Any]:
    """The data of every record in a topic, in its order."""
    return [record["data"] for record in records(server, topic)]


def cursor_at(server: ServerProcess, topic: str, cursor: str, seq: int) -> dict[str, Any]:
    """A cursor once it stands at a seq: Spark tells its listeners of a batch some time after it."""
    place = f"/v0/topics/{topic}/cursors/{cursor}"
    return until(lambda: server.get(place)[1], lambda found: found.get("seq") == seq, PATIENCE_S)
