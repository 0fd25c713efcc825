"""Encodes metric families in the Prometheus text format, version 0.0.4."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "histogram"]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(NamedTuple):
    """One value; `suffix` is appended to the family's name for the parts of a histogram."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """All samples with one metric name."""

    name: str
    kind: Kind
    text: str
    samples: Iterable[Sample]


def gauge(name: str, text: str, value: float) -> Family:
    """Return a family with one value that goes up and down."""
    return Family(name, "gauge", text, [Sample(value)])


def counter(name: str, text: str, value: float) -> Family:
    """Return a family with one value that only grows."""
    return Family(name, "counter", text, [Sample(value)])


def histogram(name: str, text: str, bounds: Iterable[int], counts: Iterable[int], total: float) -> Family:
    """Return a histogram. `counts` has one count per bound and one above the last; Prometheus wants them cumulative."""
    samples = []
    seen = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        seen += count
        samples.append(Sample(seen, {"le": bound}, "_bucket"))
    return Family(name, "histogram", text, [*samples, Sample(total, suffix="_sum"), Sample(seen, suffix="_count")])


def encode(families: Iterable[Family]) -> bytes:
    """Return the families as the body of a metrics page."""
    lines: list[str] = []
    for name, kind, text, samples in families:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}" for sample in samples]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
