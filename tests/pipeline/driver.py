"""A driver of its own process, for tests that kill it: takes jobs as lines of JSON, and says what became of each.

python -m tests.pipeline.driver URL      {"job": "copy", …} → {"done": true} | {"failed": "…"}
"""

import sys
from collections.abc import Callable
from typing import Any

from msgspec import json

from driftq.pipeline import session
from driftq.pipeline.runs.launcher import RunSettings, run_job

MASTER = "local[2,3]"


def main() -> None:
    """Until nobody has another job."""
    url = sys.argv[1]
    spark = session(url, master=MASTER, short=True)
    _say("ready")
    for line in sys.stdin:
        asked: dict[str, Any] = json.decode(line)
        try:
            JOBS[asked.pop("job")](spark, url, **asked)
        except Exception as error:  # noqa: BLE001  # whatever it is, the test is told
            spark.range(1).count()  # raises, and so ends this driver, where its JVM is gone
            _say(json.encode({"failed": str(error)[:2000]}).decode())
        else:
            _say('{"done":true}')


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def copy(spark: Any, url: str, *, source: str, to: str, checkpoint: str, at_once: int) -> None:
    """From topic to topic, in several batches of two partitions."""
    reader = spark.readStream.format("driftq").option("topic", source).option("startingSeq", "earliest")
    rows = reader.option("maxRecordsPerTrigger", at_once).option("splitRecords", at_once // 2).load()
    writer = rows.writeStream.format("driftq").option("topic", to).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def archive(_: Any, url: str, *, source: str, lake: str, state: str, at_once: int) -> None:
    """A topic into a lake."""
    settings = RunSettings(server=url, master=MASTER, state_dir=state)
    run_job("archive", settings=settings, topics=[source], lake=lake, once=True, max_records=at_once)


JOBS: dict[str, Callable[..., None]] = {"copy": copy, "archive": archive}

if __name__ == "__main__":
    main()
