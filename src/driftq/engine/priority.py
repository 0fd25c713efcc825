"""The effective priority of a topic (http-v0 §15): a number that shapes delivery and nothing else.

manual   the topic's `priority`, clamped to ±1000
recency  500 when it was just consumed, halved every 30 s, 0 after five minutes; off with `auto_priority`
age      what has waited: 0.1 a millisecond, at most 1000
"""

from driftq.model.limits import PRIORITY_MAX
from driftq.model.topic import TopicConfig

RECENCY_MAX = 500
HALF_LIFE_MS = 30_000
RECENCY_END_MS = 300_000
AGE_PER_MS = 0.1
AGE_MAX = 1000


def effective_priority(config: TopicConfig, consumed_at: int | None, now: int, waited_ms: int = 0) -> int:
    """The sum of the three, rounded. `consumed_at` is when it was last read, if it was."""
    manual = max(-PRIORITY_MAX, min(PRIORITY_MAX, config.priority or 0))
    age = min(AGE_MAX, max(0, waited_ms) * AGE_PER_MS)
    return round(manual + _recency(config, consumed_at, now) + age)


def _recency(config: TopicConfig, consumed_at: int | None, now: int) -> float:
    if consumed_at is None or not config.auto_priority:
        return 0.0
    idle_ms = max(0, now - consumed_at)
    return 0.0 if idle_ms >= RECENCY_END_MS else RECENCY_MAX * 2.0 ** (-idle_ms / HALF_LIFE_MS)
