"""A diff that found no records and waits for some (http-v0 §8).

The wait ends once, with the first of these events:
    an append        answers with a new page; it is empty if the diff's filter excludes all new records
    the topic is deleted
                     answers 404
    the deadline passes, or the caller hangs up
                     answers with the page that was found at first
"""

from driftq.codec.record_json import Fields
from driftq.engine.block_fetch import Fetch
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v0.records.record_bodies import page_reply
from driftq.server import Server
from driftq.system.runtime import Pending, Timer


class Poll:
    """One waiting diff and its answer."""

    def __init__(self, server: Server, request: Request, query: PageQuery, fields: Fields, first: Page) -> None:
        self._server = server
        self._engine = server.engine
        self._request = request
        self._name = request.params[0]
        self._query = query
        self._fields = fields
        self._first = first
        self._answer: Pending[Reply] = Pending()
        self._timer: Timer | None = None
        self._fetching = False

    def park(self, wait_ms: int) -> Pending[Reply]:
        """Start waiting at most `wait_ms` milliseconds. Returns the answer as a promise."""
        self._engine.wakeups.add(self._name, self._look)
        self._timer = self._server.runtime.later(wait_ms, self._give_up)
        self._request.on_hang_up = self._give_up
        self._request.waits = True
        return self._answer

    def _look(self) -> None:
        """Read again after a change of the topic. A loss or a delete below the cursor does not end the wait."""
        if self._fetching or self._answer.settled:
            return
        try:
            self._look_again()
        except Exception as error:  # noqa: BLE001  # any error is the answer to this caller only
            self._fail(error)

    def _look_again(self) -> None:
        found = self._engine.diff(self._name, self._query)
        if isinstance(found, Fetch):
            self._fetching = True
            found.then(self._fetched)
        elif found.slices or found.tombstone is not None or found.head_seq != self._first.head_seq:
            self._engine.touch(self._engine.catalog.get(self._name))
            self._end(found)

    def _fetched(self, done: Pending[None]) -> None:
        self._fetching = False
        if done.error is None:
            self._look()
        elif not self._answer.settled:
            self._fail(done.error)

    def _give_up(self) -> None:
        if not self._answer.settled:
            self._end(self._first)

    def _end(self, page: Page) -> None:
        reply = page_reply(self._request, page, self._fields, self._server.clock)
        self._leave()
        self._answer.resolve(reply)

    def _fail(self, error: BaseException) -> None:
        self._leave()
        self._answer.fail(error)

    def _leave(self) -> None:
        self._engine.wakeups.discard(self._name, self._look)
        self._request.on_hang_up = None
        if self._timer is not None:
            self._timer.cancel()
