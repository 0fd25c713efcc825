"""`session()` makes a SparkSession that starts fast, logs little, and knows the format `driftq`.

The session is local by default. The same call connects to a cluster (`master=`) or to a Spark Connect server
(`remote=`). The code of the source and the sink is pickled by value then, so DriftQ need not be installed there.
Missing arguments are taken from the environment. An API key is never put into a Spark conf, only into pickled objects.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.spark import session_internals as internals
from driftq.pipeline.spark.java import find_java, home_for_spark
from driftq.pipeline.spark.jvm import (
    current_class_data,
    end_started,
    ensure_started,
    joins_a_jvm,
    runs_this_python,
    spark_home,
)
from driftq.pipeline.spark.plain_spark import VARIABLE as PLAIN_VARIABLE
from driftq.pipeline.spark.plain_spark import is_plain
from driftq.pipeline.spark.socket_directory import SERVER_VARIABLE, private_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SERVER_CONF = "spark.driftq.server"
PUSH_CONF = "spark.sql.python.filterPushdown.enabled"
_QUICK = {
    "spark.buffer.size": str(1 << 20),  # of the sockets to Python processes, which transport rows
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own pattern plus our option `apiKey`: Spark shows the options of a table that was made with SQL.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|api[.]?key",
    # The cold tier of a topic is many files. Up to 1000 files are listed without a Spark job, which would take
    # longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # A query that is killed while it writes its first batch to the checkpoint leaves a temporary file. With this
    # check the query could never start again. A checkpoint that has batches is continued with or without the check.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TRAINING = """
from driftq.pipeline.spark_session import train
train()
"""


def session(
    server: str | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    name: str = "driftq",
    conf: Mapping[str, str] | None = None,
    api_key: str | None = None,
    short: bool = False,
) -> "SparkSession":
    """Return a session with the format `driftq`: the existing session if there is one.

    `server` is the default server of reads and writes. `master` is Spark's (`local[*]`, `spark://…`), `remote` is a
    Spark Connect server (`sc://…`). With `short=True`, for a process that lives for seconds, the JVM compiles code fast
    instead of optimizing it.
    """
    if master is not None and remote is not None:
        raise PipelineError("give master or remote, not both")
    if str((conf or {}).get(PUSH_CONF, "false")).lower() != "false":
        raise PipelineError(
            f"{PUSH_CONF}=true is refused: Spark 4.3 applies the pushed filters of one query to other queries of the "
            "same DataFrame. Narrow a read of driftq with options; if another format needs the setting, start your own "
            "Spark session and call driftq.pipeline.register(spark)"
        )
    if remote is not None:
        spark = _remote(remote, conf)
        register(spark, server, api_key=api_key)
        return spark
    fresh, spark = _classic(master, name, conf or {}, server, api_key, short=short)
    internals.use_in_this_thread(spark)
    internals.use_in_every_thread()
    if fresh and is_local(spark):
        _listen(spark, server, api_key)
    else:
        register(spark, server, api_key=api_key)
    return spark


def register(spark: "SparkSession", server: str | None = None, *, api_key: str | None = None) -> None:
    """Register the format `driftq` in any session, and report the positions of its queries to the server.

    The server is `server`, else the session's `spark.driftq.server`, else the one of the environment.
    """
    import driftq
    from driftq.pipeline.source.data_source import DriftqSource
    from driftq.pipeline.source.read_options import api_key_of

    if not internals.is_connect(spark):
        internals.use_in_every_thread()
    if not is_local(spark):
        internals.pickle_by_value(driftq)
    if server is not None:
        spark.conf.set(SERVER_CONF, server)
    known = server or spark.conf.get(SERVER_CONF, None)
    key = api_key_of({}, api_key)

    class SessionSource(DriftqSource):
        """The data source, with the server and key of this session."""

        session_server = known
        session_key = key

    spark.dataSource.register(SessionSource)
    _listen(spark, known, key)


def _listen(spark: "SparkSession", server: str | None, api_key: str | None) -> None:
    """Report the positions of queries to the server, once per session and server, and store the key in the session."""
    from driftq.pipeline.server_connection import Wire
    from driftq.pipeline.source.cursor_listener import listen
    from driftq.pipeline.source.read_options import api_key_of, server_of

    if api_key is not None:
        spark.__dict__["_driftq_key"] = api_key
    address = server_of({}, server)
    listening: set[str] = spark.__dict__.setdefault("_driftq_listening", set())
    if address not in listening:
        listening.add(address)
        listen(spark, Wire(address, api_key_of({}, api_key)))


def key_of(spark: "SparkSession") -> str | None:
    """Return the API key that the session was given, for calls to the server from this process."""
    return spark.__dict__.get("_driftq_key")


def is_local(spark: "SparkSession") -> bool:
    """Whether the session runs in one JVM on this machine, with this Python."""
    master = spark.conf.get("spark.master", "")
    return not internals.is_connect(spark) and str(master).split("[")[0] == "local"


def _remote(remote: str, conf: Mapping[str, str] | None) -> "SparkSession":
    from pyspark.sql import SparkSession

    if remote.startswith("local"):
        _use_this_python()
        _use_java()
    builder = SparkSession.builder.remote(remote)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _classic(
    master: str | None, name: str, conf: Mapping[str, str], server: str | None, api_key: str | None, *, short: bool
) -> tuple[bool, "SparkSession"]:
    """Return whether the JVM is new, and the session.

    A new JVM gets the settings of the source through environment variables. Spark then finds the source by itself on
    first use; registering it would start two Python processes before they are needed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError("the data pipeline needs PySpark: `pip install driftq[spark]`") from error

    master = master or str(conf.get("spark.master") or os.environ.get("SPARK_MASTER") or "local[*]")
    _use_this_python()
    settings = {**defaults(master), **({SERVER_CONF: server} if server else {}), **conf, "spark.master": master}
    if settings.get("spark.driver.host") == "127.0.0.1":
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_HOME", str(spark_home()))
    fresh = False
    if is_plain():
        _use_java()
    else:
        internals.hide_repeated_failures()
        fresh = _start_jvm(settings, server, api_key, short=short)
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return fresh, builder.getOrCreate()


def _start_jvm(settings: Mapping[str, str], server: str | None, api_key: str | None, *, short: bool) -> bool:
    """Start the JVM of the session unless there is one, and return whether it was started."""
    known = {SERVER_VARIABLE: server or settings.get(SERVER_CONF, "")}
    return ensure_started(settings, known | ({"DRIFTQ_API_KEY": api_key} if api_key else {}), short=short)


def _use_this_python() -> None:
    """Make Spark start its Python processes with this Python; by default it uses the first `python3` on the path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _use_java() -> None:
    """Make Spark's own scripts start the Java that we found."""
    os.environ["JAVA_HOME"] = str(home_for_spark(find_java()))


def defaults(master: str) -> dict[str, str]:
    """Return our default conf for a master. Values that the caller gives override it."""
    settings = dict(_QUICK)
    # The in-memory catalog creates this directory immediately; by default it would be in the working directory.
    settings["spark.sql.warehouse.dir"] = str(private_directory("driftq-warehouse"))
    if is_plain():
        settings |= {"spark.log.level": "ERROR", f"spark.executorEnv.{PLAIN_VARIABLE}": "1"}
    else:
        settings |= internals.CHECKPOINTS
        if runs_this_python(master) and not joins_a_jvm():
            settings |= internals.python_processes()
    if master.startswith("local"):
        settings |= _LOOPBACK | {"spark.sql.shuffle.partitions": str(_cores(master))}
    elif master.startswith(("spark://127.0.0.1:", "spark://localhost:")):
        settings |= _LOOPBACK
    return settings


def _cores(master: str) -> int:
    """Return how many tasks a local master runs at the same time."""
    inside = master.partition("[")[2].rstrip("]").split(",")
    if master.startswith("local-cluster"):
        return int(inside[0]) * int(inside[1])
    count = inside[0] or "1"
    return os.cpu_count() or 1 if count == "*" else int(count)


def warm() -> Path:
    """Record the class-data archive, which makes later sessions start fast, and return its path. Takes about 10 s."""
    if is_plain():
        raise PipelineError(f"plain sessions do not use a class-data archive: unset {PLAIN_VARIABLE} to record one")
    archives = current_class_data()
    if not archives.using():
        subprocess.run([sys.executable, "-c", _TRAINING], check=True, stdin=subprocess.DEVNULL)
    return archives.spark


def train() -> None:
    """Use the parts of Spark that sessions use, so that the archive recorded at exit contains their classes."""
    spark = session(master="local[2]", name="driftq-warm")
    with tempfile.TemporaryDirectory() as directory:
        spark.range(1000).selectExpr("id", "cast(id as string) text").write.parquet(f"{directory}/rows")
        rows = spark.read.parquet(f"{directory}/rows")
        rows.groupBy("text").count().orderBy("text").collect()
        rows.mapInArrow(lambda batches: batches, "id bigint, text string").selectExpr(
            "from_json(text, 'n int')"
        ).collect()
        query = (
            spark.readStream.format("rate")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()
    end_started()
    if not current_class_data().using():
        raise PipelineError("the class-data archive could not be written: check that the cache directory is writable")
