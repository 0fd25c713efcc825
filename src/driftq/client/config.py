"""The config of a topic as a caller says it: fields by name, checked before they are sent."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import ValidationError, convert, structs

from driftq.client.errors import ConfigDiffersError
from driftq.model.topic import TopicConfig, TopicPatch

T = TypeVar("T")

_FIELDS = frozenset(field.name for field in structs.fields(TopicConfig))


def topic_config(config: TopicConfig | None, fields: Mapping[str, Any]) -> TopicConfig:
    """The config with these fields on top. Raises TypeError for a name or a type that is none of a config's."""
    given = structs.asdict(config) if config is not None else {}
    return _converted({**given, **fields}, TopicConfig)


def topic_patch(fields: Mapping[str, Any]) -> TopicPatch:
    """Return the changes; a field that is None returns to its default. Raise TypeError as `topic_config`."""
    if not fields:
        raise TypeError("an update needs at least one setting to change")
    return _converted(fields, TopicPatch)


def explicit_fields(config: TopicConfig | None, fields: Mapping[str, Any]) -> list[str]:
    """Return the settings that a caller has named: by keyword, or in a config with a value that is not the default."""
    default = TopicConfig()
    return [
        field
        for field in structs.asdict(default)
        if field in fields or (config is not None and getattr(config, field) != getattr(default, field))
    ]


def check_same(topic: str, there: TopicConfig, asked: TopicConfig, fields: Iterable[str]) -> None:
    """Raise ConfigDiffersError unless a topic has the values that were asked for in these fields."""
    wanted = asked.resolved(topic)
    pairs = {field: (getattr(there, field), getattr(wanted, field)) for field in fields}
    different = {field: (_shown(found), _shown(value)) for field, (found, value) in pairs.items() if found != value}
    if different:
        raise ConfigDiffersError(topic, different)


def _shown(value: Any) -> Any:
    """Return an enumerated value as its text."""
    return str(value) if isinstance(value, str) else value


def _converted(fields: Mapping[str, Any], kind: type[T]) -> T:
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise TypeError(f"a topic has no setting {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    try:
        return convert(dict(fields), kind)
    except ValidationError as error:
        raise TypeError(f"a topic cannot be set up so: {error}") from None
