"""Importing the pipeline changes nothing in PySpark, not even in a process that Spark started."""

import subprocess
import sys

import pytest

from tests.support.process import environment

_COMPARE = """
import importlib, logging, pkgutil, sys, traceback
NAMES = [
    "pyspark", "pyspark.cloudpickle", "pyspark.cloudpickle.cloudpickle", "pyspark.core.context", "pyspark.daemon",
    "pyspark.java_gateway", "pyspark.logger", "pyspark.serializers", "pyspark.sql", "pyspark.sql.datasource",
    "pyspark.sql.session", "pyspark.sql.streaming.listener", "pyspark.worker", "py4j.java_gateway", "py4j.protocol",
]
LOGGERS = ["SQLQueryContextLogger", "DataFrameQueryContextLogger"]
for name in NAMES:
    importlib.import_module(name)

main = sys.modules["__main__"]
if len(sys.argv) > 1:
    main.__spec__ = importlib.util.find_spec(sys.argv[1])

def look():
    found = {"excepthook": sys.excepthook, "main.traceback": main.traceback}
    for name in LOGGERS:
        found[name] = logging.getLogger(name).disabled
    for name in NAMES:
        module = sys.modules[name]
        for key, value in vars(module).items():
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__.startswith(("pyspark", "py4j")):
                found.update({f"{name}.{key}.{inner}": held for inner, held in vars(value).items()})
            elif isinstance(value, (set, list)):
                found[f"{name}.{key} holds"] = len(value)
    return found

before = look()
import driftq.pipeline, pyspark_driftq
assert pyspark_driftq.DefaultSource.name() == "driftq"
for public in driftq.pipeline.__all__:
    getattr(driftq.pipeline, public)
for found in pkgutil.walk_packages(driftq.pipeline.__path__, "driftq.pipeline."):
    importlib.import_module(found.name)
after = look()
# Importing a submodule sets it as an attribute of its package, which is no patch.
new = {name for name in after.keys() - before.keys() if not isinstance(after[name], type(sys))}
print(sorted(new | {name for name in before if name not in after or before[name] is not after[name]}))
"""


@pytest.mark.parametrize("program", [None, "pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"])
def test_importing_the_pipeline_leaves_pyspark_as_it_is(program: str | None) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _COMPARE, *filter(None, [program])],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
