"""Every struct that is stored in a frame or a checkpoint refuses fields that it does not know.

A newer version may add a field at the end of a stored array. An older version that ignored it would drop state that
someone was promised, without a word. So the decoder refuses it, and the start says which version to use.
"""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from msgspec import Struct, inspect

_PACKAGES = ("engine", "features", "storage")
_NEVER_STORED = {
    "driftq.storage.wal.wal_process",
    "driftq.storage.segments.segment_process",
    "driftq.storage.wal.writer_messages",
}
"""Modules whose arrays are messages between processes of one version."""
_OPEN_ENDED = {
    # What every version must be able to read of a newer one: which version wrote it.
    "driftq.storage.wal.wal_head.FileHead",
    # Callers of the API may send settings that nobody knows. A stored config is decoded strictly before.
    "driftq.model.topic_config.TopicConfig",
    "driftq.engine.state.control_frames._Named",
    "driftq.engine.state.control_frames._Numbered",
}
"""Structs that take more than they know, each for a reason."""


def _modules() -> Iterator[str]:
    for package in _PACKAGES:
        found = importlib.import_module(f"driftq.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"driftq.{package}."):
            yield module.name


def _structs_below(kind: inspect.Type) -> Iterator[type[Struct]]:
    """Yield every struct that a value of a type can hold."""
    pending: list[inspect.Type] = [kind]
    seen: set[type] = set()
    while pending:
        here = pending.pop()
        if isinstance(here, inspect.StructType):
            if here.cls in seen:
                continue
            seen.add(here.cls)
            yield here.cls
            pending += [field.type for field in here.fields]
        for name in ("item_type", "key_type", "value_type"):
            if isinstance(inner := getattr(here, name, None), inspect.Type):
                pending.append(inner)
        for name in ("types", "item_types"):
            pending += getattr(here, name, ())


def _stored() -> dict[str, type[Struct]]:
    found: dict[str, type[Struct]] = {}
    for name in _modules():
        module = importlib.import_module(name)
        for value in vars(module).values():
            if not isinstance(value, type) or not issubclass(value, Struct) or value.__module__ in _NEVER_STORED:
                continue
            if value.__struct_config__.array_like:
                for inner in _structs_below(inspect.type_info(value)):
                    found[f"{inner.__module__}.{inner.__qualname__}"] = inner
    return found


@pytest.mark.parametrize("name", sorted(_stored().keys() - _OPEN_ENDED))
def test_a_stored_struct_refuses_fields_it_does_not_know(name: str) -> None:
    config = _stored()[name].__struct_config__
    assert config.forbid_unknown_fields, f"{name}: add forbid_unknown_fields=True, or say why it is never stored"


def test_there_are_stored_structs() -> None:
    """The search above finds what it is about."""
    assert {
        "driftq.engine.state.control_frames.TopicFrame",
        "driftq.engine.files.topic_checkpoint.TopicCheckpoint",
    } <= _stored().keys()
