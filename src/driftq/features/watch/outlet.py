"""The interface between a feed and the connection that sends its events: an event stream or a WebSocket."""

from typing import Protocol

from driftq.errors import SegmentUnavailableError
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.model.tombstone import Tombstone


class Outlet(Protocol):
    """Sends the events of one feed. The methods must not raise."""

    @property
    def ready(self) -> bool:
        """Whether the outlet accepts more. After False, the outlet calls `Feed.resume` when it has room."""
        ...

    def records(self, name: str, batch: RenderedPage, from_seq: int, head_seq: int) -> None:
        """Send records after the cursor `from_seq`."""
        ...

    def tombstone(self, name: str, tombstone: Tombstone) -> None:
        """Report records that were lost."""
        ...

    def caught_up(self, name: str, head_seq: int) -> None:
        """Report that the topic was read to its end."""
        ...

    def deleted(self, name: str, head_seq: int) -> None:
        """Report that the topic was deleted; its subscription has ended."""
        ...

    def paced(self, names: list[str], retry_after_ms: int) -> None:
        """Report that these topics wait while the server is under pressure."""
        ...

    def unavailable(self, name: str, error: SegmentUnavailableError) -> None:
        """Report that records of a topic cannot be read now. The feed retries from the same cursor."""
        ...

    def flush(self) -> None:
        """Send the buffered events; the feed has none left in this step."""
        ...

    def failed(self) -> None:
        """End the connection, because the feed failed with an internal error."""
        ...

    def standing(self) -> object:
        """Return the state that the sent bytes depend on besides the topic; None if no other outlet can share them."""
        ...

    @property
    def said(self) -> bytes | None:
        """The bytes of the last flush, valid directly after it; None if there are too many to share."""
        ...

    def say_again(self, said: bytes) -> None:
        """Send the bytes that another outlet with an equal `standing` sent."""
        ...
