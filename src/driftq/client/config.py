"""The config of a topic as a caller says it: fields by name, checked before they are sent."""

from collections.abc import Mapping
from typing import Any

from msgspec import ValidationError, convert, structs

from driftq.model.topic import TopicConfig

_FIELDS = frozenset(field.name for field in structs.fields(TopicConfig))


def topic_config(config: TopicConfig | None, fields: Mapping[str, Any]) -> TopicConfig:
    """The config with these fields on top. Raises TypeError for a name or a type that is none of a config's."""
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise TypeError(f"a topic has no setting {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    given = structs.asdict(config) if config is not None else {}
    try:
        return convert({**given, **fields}, TopicConfig)
    except ValidationError as error:
        raise TypeError(f"a topic cannot be set up so: {error}") from None
