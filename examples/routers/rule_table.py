"""A router that follows a table of rules: the first one that fits a message decides, and where none does, its producer.

The table is a JSON file, named by RULES in the environment, read once at the start. A rule has conditions, all of which
must hold, and a decision:

    {"topic": "orders.*", "key_prefix": "eu-", "value_contains": "refund", "tenant_id": "vip",
     "label": "refund", "target_topic": "refunds", "partition_override": 0, "meta": {"team": "billing"}}
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct, json

from driftq.model.message import Message, RoutingDecision


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions, then the decision."""

    topic: str = "*"
    key_prefix: str = ""
    value_contains: str = ""
    tenant_id: str | None = None
    label: str = ""
    target_topic: str = ""
    partition_override: int | None = None
    meta: dict[str, str] = {}

    def fits(self, topic: str, message: Message) -> bool:
        """Do all conditions hold?"""
        tenant = message.envelope.tenant_id if message.envelope is not None else ""
        return (
            fnmatchcase(topic, self.topic)
            and message.key.startswith(self.key_prefix)
            and self.value_contains in message.value
            and self.tenant_id in (None, tenant)
        )


class RuleTable:
    """Rules in their order."""

    def __init__(self, path: str) -> None:
        self._rules = json.decode(Path(path).read_bytes(), type=list[Rule])

    async def route(self, topic: str, message: Message) -> RoutingDecision | None:
        """The decision of the first rule that fits."""
        for rule in self._rules:
            if rule.fits(topic, message):
                return RoutingDecision(rule.label, rule.target_topic, rule.partition_override, rule.meta)
        return None


def router() -> RuleTable:
    """What `--router rule_table:router` names. A table that cannot be read refuses the start."""
    return RuleTable(os.environ["RULES"])
