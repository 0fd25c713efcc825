"""Where the events of a feed go: a stream or a socket, as the feed sees it."""

from typing import Protocol

from driftq.errors import SegmentUnavailableError
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.model.tombstone import Tombstone


class Outlet(Protocol):
    """Where the events go. Each call hands one over, and may not fail."""

    @property
    def ready(self) -> bool:
        """Does it take more? Whoever says no calls `Feed.resume` later."""
        ...

    def records(self, name: str, batch: RenderedPage, from_seq: int, head_seq: int) -> None:
        """Records after a cursor."""
        ...

    def tombstone(self, name: str, tombstone: Tombstone) -> None:
        """A loss."""
        ...

    def caught_up(self, name: str, head_seq: int) -> None:
        """There is nothing more for now."""
        ...

    def deleted(self, name: str, head_seq: int) -> None:
        """The topic is gone, and with it the subscription."""
        ...

    def paced(self, names: list[str], retry_after_ms: int) -> None:
        """These topics wait while the server is pressed."""
        ...

    def unavailable(self, name: str, error: SegmentUnavailableError) -> None:
        """Records of a topic cannot be read now; the feed tries again by itself, from the same cursor."""
        ...

    def flush(self) -> None:
        """That was all for this step."""
        ...

    def failed(self) -> None:
        """The feed has made a mistake, and has ended."""
        ...

    def standing(self) -> object:
        """What its words depend on beside the topic they are about, to be compared; None if they are its alone."""
        ...

    @property
    def said(self) -> bytes | None:
        """What the last flush handed over, right behind it; None if that is too much to be handed on."""
        ...

    def say_again(self, said: bytes) -> None:
        """Hand over what another outlet of the same standing said."""
        ...
