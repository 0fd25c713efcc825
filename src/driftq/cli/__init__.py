"""The command line: every `driftq` command, its arguments and its output."""
