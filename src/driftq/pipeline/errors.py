"""Errors of the pipeline: mistakes of the user and failures around it. Each message is one line with the next step."""

from driftq.errors import DriftQError


class PipelineError(DriftQError):
    """A pipeline cannot start, or cannot continue."""

    code = "pipeline_refused"


class AbsentError(PipelineError):
    """A topic, run or job does not exist."""


class DeniedError(PipelineError):
    """The server rejected the API key, or the key lacks a permission."""


class UnreachableError(PipelineError):
    """No server answered within the time limit for retries."""


class DataLossError(PipelineError):
    """Records were lost before they were read, and the reader did not allow data loss (`onDataLoss`)."""

    code = "data_loss"
