"""What a user of the pipeline can get wrong, or the world can do to it: one line that says what to do next."""

from driftq.errors import DriftQError


class PipelineError(DriftQError):
    """A pipeline that cannot start, or cannot go on."""

    code = "pipeline_refused"


class AbsentError(PipelineError):
    """A topic, run or job that is not there."""


class DeniedError(PipelineError):
    """The server wants another API key."""


class UnreachableError(PipelineError):
    """No server answers, and it was waited for."""


class DataLossError(PipelineError):
    """Records were lost before they were read, and the reader did not say that it can do without them."""

    code = "data_loss"
