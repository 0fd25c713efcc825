"""The switch `DRIFTQ_PLAIN_SPARK`: with 1, sessions are made the way PySpark's own documentation makes them.

Plain sessions start and read slower, and Spark prints more. Use them if a new Spark, or a Spark that its vendor has
changed, does not work with the names that docs/architecture.md lists. Spark's Python processes inherit the variable.
"""

import os

from driftq.pipeline.errors import PipelineError

VARIABLE = "DRIFTQ_PLAIN_SPARK"


def is_plain() -> bool:
    """Whether the environment asks for stock PySpark. Raises PipelineError if the value is neither 1 nor 0."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise PipelineError(f"{VARIABLE} is {value!r}: use 1 for stock PySpark, or 0")
    return value == "1"
