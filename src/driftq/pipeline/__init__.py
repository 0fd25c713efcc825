"""The data pipeline on Spark: session, source, sink and jobs.

Needs the extra `spark`. Importing this package does not import Spark; the first call that needs it does.
"""

from driftq.pipeline.cold_topics import read_topic
from driftq.pipeline.errors import DataLossError, PipelineError
from driftq.pipeline.jobs.files import step
from driftq.pipeline.jobs.launch import run_job
from driftq.pipeline.sessions import register, session, warm

__all__ = ["DataLossError", "PipelineError", "read_topic", "register", "run_job", "session", "step", "warm"]
