"""Facts of a log line that programs read: `_log.info("ready", extra=facts(topics=3))`.

A formatter (`driftq.cli.server.log_lines`) finds them in the record under `FACTS` and prints them next to the message.
Secrets, payloads and query strings are never facts: more people read a log than the data.
"""

from collections.abc import Mapping

FACTS = "driftq_facts"

Fact = str | int | float | bool | None


def facts(**named: Fact) -> Mapping[str, Mapping[str, Fact]]:
    """Return the `extra` of a log call with these facts; a fact that is None is left out."""
    return {FACTS: {name: value for name, value in named.items() if value is not None}}
