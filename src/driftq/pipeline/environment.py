"""What a session's JVM hands on to the Python processes that it starts: the names of the variables."""

SERVER_VARIABLE = "DRIFTQ_SESSION_SERVER"
PUSH_VARIABLE = "DRIFTQ_SESSION_PUSH"
