"""Starts the JVM of a local session, without Spark's shell scripts and from a class-data archive.

Spark's own way is a script that starts one JVM to print the command line of a second one. This module builds that
command line itself, which saves one JVM start and lets the JVM map the classes of an earlier run (`class_data`). If
there is no archive, the JVM records one when it ends. The JVM ends with this process, because it watches its standard
input.
"""

import os
import shlex
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.spark import socket_directory as sockets
from driftq.pipeline.spark.class_data import ClassData, class_data_of
from driftq.pipeline.spark.java import Java, cache_dir, find_java, home_for_spark
from driftq.pipeline.spark.plain_spark import is_plain

START_PATIENCE_S = 300.0
_POLL_S = 0.01
_QUICKLY = "-XX:TieredStopAtLevel=1"
"""Makes the JVM compile code fast instead of optimizing it."""
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
_GONE, _GONE_SINCE = "sun.security.action", 24
"""Package removed in Java 24: opening a package that does not exist makes Java print a warning."""
# The first two levels must be equal, or Spark prints that it changes one of them. The loggers that are off print, on
# many lines, failures that are also raised, so the caller of the query sees them anyway.
_QUIET = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.org.name = org
logger.org.level = error
logger.batch.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.batch.level = off
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2
logger.write.level = off
logger.abort.name = org.apache.spark.util.Utils
logger.abort.level = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """Return the directory of Spark: `SPARK_HOME`, else the PySpark wheel."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError("the data pipeline needs PySpark: `pip install driftq[spark]`")
    return Path(spec.origin).parent


def _collector() -> str:
    """Return the collector option: serial for up to 2 cores, as it starts fastest; else G1, Java's own choice."""
    return "-XX:+UseSerialGC" if (os.cpu_count() or 1) <= 2 else "-XX:+UseG1GC"


def current_class_data() -> ClassData:
    """Return the archives that a session on this machine uses. The files may not exist yet."""
    return _class_data(find_java())


def _class_data(java: Java) -> ClassData:
    return class_data_of(java, _jars(), [_collector(), *_modules(java)])


def _jars() -> list[Path]:
    return sorted((spark_home() / "jars").glob("*.jar"))


def log_config() -> Path:
    """Write the log configuration (errors only) if needed, and return its path. Log4j needs a file."""
    path = cache_dir() / "log4j2.properties"
    if not path.exists() or path.read_text(encoding="utf-8") != _QUIET:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"log4j2.{os.getpid()}")
        fresh.write_text(_QUIET, encoding="utf-8")
        fresh.replace(path)
    return path


def command(java: Java, conf: Mapping[str, str], *, short: bool, class_data: Sequence[str]) -> list[str]:
    """Return the command line of the session's JVM. `class_data` are the options for its archives."""
    options = [
        *_common(java, conf.get("spark.driver.extraClassPath")),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        "-Dderby.connection.requireAuthentication=false",
        _collector(),
        *class_data,
    ]
    if short:
        options.append(_QUICKLY)
    options += shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    options.append("org.apache.spark.deploy.SparkSubmit")
    for key, value in conf.items():
        options += ["--conf", f"{key}={value}"]
    return [*options, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))]


def daemon_command(java: Java) -> list[str]:
    """Return the command line of a small Spark daemon without its main class. It is tuned for a fast start."""
    if is_plain():
        return [str(spark_home() / "bin" / "spark-class")]
    return [*_common(java), "-Xmx512m", "-XX:+UseSerialGC", _QUICKLY, *_class_data(java).using()]


def _common(java: Java, first: str | None = None) -> list[str]:
    """Return the options of every JVM. An archive can be used only if the class path begins with the same jars."""
    return [
        str(java.command),
        "-cp",
        os.pathsep.join([*filter(None, [first]), *map(str, _jars())]),
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        *_modules(java),
        f"-Dlog4j2.configurationFile={log_config()}",
    ]


def _modules(java: Java) -> list[str]:
    """Return the options that open Java packages to Spark. A JVM can use an archive only with the same options."""
    opened = [package for package in _OPENED if package != _GONE or java.version < _GONE_SINCE]
    return [
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
    ]


class Gateway(NamedTuple):
    """A running JVM, and how PySpark connects to it."""

    process: "subprocess.Popen[bytes]"
    """The JVM ends when its standard input is closed."""
    port: int
    secret: str

    def variables(self) -> dict[str, str]:
        """Return the environment of a process whose sessions, one at a time, are to run in this JVM."""
        return {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}


def ensure_started(conf: Mapping[str, str], variables: Mapping[str, str], *, short: bool = False) -> bool:
    """Connect PySpark to a JVM, starting one if there is none. Returns whether it was started, with `variables`."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None or joins_a_jvm():
        return False
    _attach(start(conf, variables, short=short))
    return True


def end_started() -> None:
    """End the JVM that this process started, if any, and wait until it has ended. Its session is stopped already."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait()


def joins_a_jvm() -> bool:
    """Whether the environment points to a JVM that another process has started."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start(conf: Mapping[str, str], variables: Mapping[str, str], *, short: bool = False) -> Gateway:
    """Start a JVM with these variables, from the archive if there is one. Raises PipelineError if it does not start."""
    java = find_java()
    archives = _class_data(java)
    part = archives.place_to_record()
    options = archives.using() if part is None else archives.recording(part)
    line = command(java, conf, short=short, class_data=options)
    if part is not None:
        # The shell outlives Java and renames the archive into place when it is complete.
        # Without `mv`, it empties the archive, which no command is needed for; the next session removes it.
        left = shlex.quote(str(part))
        moved = f"mv {left} {shlex.quote(str(archives.spark))} 2>/dev/null || [ ! -e {left} ] || : >{left}"
        line = ["/bin/sh", "-c", f'"$@"; code=$?; {moved}; exit $code', "sh", *line]
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "gateway"
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            env=_environment(java, conf) | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)} | dict(variables),
            preexec_fn=_leave_interrupts_to_python,
            pass_fds=sockets.inherited(),
        )
        _import_meanwhile()
        return Gateway(process, *_address(process, told))


def _import_meanwhile() -> None:
    """Import modules while Java starts, which takes 1 s.

    The first call to Java would import these, and pandas with them, which takes 0.5 s: PySpark checks with them whether
    an argument is a NumPy array.
    """
    import_module("pyspark.testing.utils")


def _environment(java: Java, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the JVM, which the Python processes that it starts inherit.

    Spark finds PySpark as a zip of sources below `SPARK_HOME` and puts it first on the path: every Python process would
    take 1 s to compile what it imports. If the processes run this Python, PySpark is installed for them, and
    `SPARK_HOME` is left out.
    """
    home = spark_home()
    variables = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(home_for_spark(java)),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": "2.13",
    }
    if runs_this_python(conf.get("spark.master", "")) and _is_installed(home.parent):
        del variables["SPARK_HOME"]
        variables.setdefault("SPARK_CONF_DIR", str(home / "conf"))
    return variables


def runs_this_python(master: str) -> bool:
    """Whether the Python processes of a session run this same Python."""
    return master.split("[")[0] == "local" and os.environ.get("PYSPARK_PYTHON") == sys.executable


def has_driftq() -> bool:
    """Whether DriftQ is installed in this Python, so that all its processes can import it."""
    try:
        return _is_installed(Path(str(metadata.distribution("driftq").locate_file(""))))
    except metadata.PackageNotFoundError:
        return False


def _is_installed(place: Path) -> bool:
    """Whether `place` is a directory where every process of this Python finds packages."""
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return place in map(Path, [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *own])


def _leave_interrupts_to_python() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _address(process: "subprocess.Popen[bytes]", told: Path) -> tuple[int, str]:
    """Return port and secret of the gateway, after the JVM has written them to the file."""
    from pyspark.serializers import UTF8Deserializer, read_int

    end = time.monotonic() + START_PATIENCE_S
    while not told.exists():
        if process.poll() is not None:
            raise PipelineError(f"Java ended with code {process.returncode} before Spark was ready: see its output")
        if time.monotonic() > end:
            process.kill()
            raise PipelineError(
                f"Spark was not ready after {START_PATIENCE_S:.0f} s: check that the machine has free memory"
            )
        time.sleep(_POLL_S)
    with told.open("rb") as file:
        return read_int(file), UTF8Deserializer().loads(file)


def _attach(started: Gateway) -> None:
    """Connect PySpark as to an existing gateway. The environment variables for that are set only during the call."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ.update(started.variables())
    try:
        gateway: Any = launch_gateway()
    finally:
        for name in started.variables():
            del os.environ[name]
    gateway.proc = started.process  # closing its standard input would end the JVM
    SparkContext._ensure_initialized(gateway=gateway)
