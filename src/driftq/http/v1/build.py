"""Which commit this was built from (http-v1 §3.2), as far as the package's own metadata says."""

from importlib.metadata import PackageNotFoundError, distribution

from msgspec import DecodeError, Struct, json

UNKNOWN = "unknown"
"""What a build that does not say is called."""


class _Repository(Struct, frozen=True):
    commit_id: str = ""


class _Origin(Struct, frozen=True):
    vcs_info: _Repository = _Repository()


def commit_of(origin: str | None) -> str:
    """The commit in a package's `direct_url.json` (PEP 610), as installers note what is from a repository."""
    try:
        found = json.decode(origin or "{}", type=_Origin)
    except DecodeError:
        return UNKNOWN
    return found.vcs_info.commit_id or UNKNOWN


def build_commit() -> str:
    """The commit of the package that is installed."""
    try:
        return commit_of(distribution("driftq").read_text("direct_url.json"))
    except PackageNotFoundError:
        return UNKNOWN
