"""Feeds: one reader's events from many topics, in one sequence (http-v0 §12.4, §12.6).

A topic that changes wakes the feed. The feed reads it and passes one batch per step to its outlet, as long as the
outlet accepts more. A slow outlet costs only a set of topic names: records are read again when the outlet has room.

    woken → its topic is marked → (a turn) → a pass: marked topics by name, each read up to where its head was → parked

Invariants
- A position moves in the same step in which its event goes to the outlet, so streams that share positions miss nothing.
- A topic is read in the step after it was marked, or later, so a read sees every change that was marked before it.
- `caught_up` is sent once for each new position at the end of a topic, and once by each feed.
- A feed waits for one block or upstream, for 250 ms at most. A longer wait delays only its own topic: the feed
  continues with the others, and returns to the topic when the wait has settled (`Subscription.late`).
- A topic whose records are unavailable keeps its position and is tried again every 1,000 ms. The feed reports this to
  its outlet once per outage, and continues with its other topics.
"""

import logging
from collections import deque

from driftq.engine.block_fetch import Fetch
from driftq.engine.load.pressure import RETRY_MS, Level
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, SegmentUnavailableError
from driftq.features.watch.outlet import Outlet
from driftq.features.watch.position import Options, ReadPosition
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.features.watch.shared_reads import Lead
from driftq.features.watch.subscription import Subscription
from driftq.features.watch.watch import Watch
from driftq.system.runtime import Pending

_log = logging.getLogger(__name__)

_EVENT_COST = 100
_TRY_AGAIN_MS = 1000
_LATE_MS = 250
"""How many milliseconds the other topics of a feed wait for a block of one of them."""


class Feed:
    """Reads the topics of one connection and passes their events to an outlet."""

    def __init__(self, watch: Watch, outlet: Outlet) -> None:
        self._watch = watch
        self._engine = watch.engine
        self._outlet = outlet
        self._subscriptions: dict[str, Subscription] = {}
        self._marked: set[str] = set()
        self._pass: deque[str] = deque()
        self._current: Subscription | None = None
        self._waiting = False
        self._held: Fetch | None = None
        """A settled fetch; it keeps its blocks in memory until the feed has read them."""
        self._asked = False
        self._put_off: set[str] = set()
        """Names of topics that the feed reads again when a timer fires."""
        self._troubled = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._subscriptions)

    # Subscriptions

    def add(self, name: str, place: ReadPosition, options: Options) -> None:
        """Follow a topic from `place`. An earlier subscription to the same topic is replaced."""
        if self._closed:
            return
        self.remove(name)
        topic = self._engine.catalog.find(name)
        if topic is not None:
            self._engine.touch(topic)
        found = Subscription(self, name, place, options, topic)
        self._subscriptions[name] = found
        self._watch.shared_reads.join(name, options, found)
        self.mark(found)

    def remove(self, name: str) -> None:
        """Stop following a topic; no event of it is sent after this call."""
        found = self._subscriptions.pop(name, None)
        if found is None:
            return
        self._watch.shared_reads.leave(name, found.options, found)
        self._marked.discard(name)
        self._put_off.discard(name)
        if self._current is found:
            self._current = None

    def close(self) -> None:
        """End the feed and drop all its subscriptions."""
        self._closed = True
        self._held = None
        for name in list(self._subscriptions):
            self.remove(name)

    # Turns

    def mark(self, subscription: Subscription) -> None:
        """Schedule a read of a topic, unless it is late, or unavailable with its retry timer running."""
        if subscription.is_late or (subscription.unavailable and subscription.name in self._put_off):
            return
        self._marked.add(subscription.name)
        self._ask()

    def resume(self) -> None:
        """Continue, because the outlet accepts more again."""
        self._ask()

    def let_go(self) -> None:
        """Release the fetched blocks, because the outlet has not accepted anything for a while."""
        self._held = None
        for subscription in self._subscriptions.values():
            if not subscription.is_late:
                subscription.late = None

    def step(self) -> int:
        """Pass on at most one batch of one topic. Return the cost in bytes."""
        self._asked = False
        if self._closed or self._waiting or not self._outlet.ready:
            return 0
        try:
            cost = self._work()
            if cost:
                self._outlet.flush()
            if self._current is not None or self._pass or self._marked:
                self._ask()
        except DriftQError as error:
            self._trouble(error)
            return 0
        except Exception:  # noqa: BLE001  # a bug in one feed ends one stream, not the server
            _log.exception("a feed failed")
            self.close()
            self._outlet.failed()
            return 0
        return cost

    # Shared reads

    def lead(self, subscription: Subscription) -> tuple[int, Lead | None]:
        """Read a topic now. Return the cost, and a `Lead` if subscriptions in the same state can reuse the result."""
        stood = self._stands(subscription)
        if stood is None:
            self.mark(subscription)
            return 0, None
        before = subscription.place.cursor
        self._marked.add(subscription.name)
        cost = self.step()
        place, topic, said = subscription.place, subscription.topic, self._outlet.said
        if topic is None or said is None or place.cursor == before or self._stands(subscription) is None:
            return cost, None
        return cost, Lead(stood, place.cursor, place.epoch, place.head, topic, said)

    def follow(self, subscription: Subscription, lead: Lead) -> bool:
        """Adopt the leader's position and resend its bytes. Return False if this feed was not in the leader's state."""
        if self._stands(subscription) != lead.stood:
            return False
        place = subscription.place
        place.cursor, place.epoch, place.head = lead.cursor, lead.epoch, lead.head
        subscription.told = (lead.epoch, lead.cursor)
        subscription.topic = lead.topic
        subscription.paced = self._troubled = False
        self._outlet.say_again(lead.said)
        return True

    def _stands(self, subscription: Subscription) -> object:
        """Return the state that the next bytes depend on, besides the topic; None unless it waits for new records."""
        place = subscription.place
        here = (place.epoch, place.cursor)
        busy = self._asked or self._waiting or self._closed or self._marked or self._pass
        if busy or self._current is not None or subscription.told != here or not self._outlet.ready:
            return None
        standing = self._outlet.standing()
        return None if standing is None else (here, standing)

    def _ask(self) -> None:
        """Request a turn if there is a topic to read."""
        if self._asked or self._waiting or self._closed:
            return
        following = self._following()
        if following is None:
            return
        self._asked = True
        topic = self._engine.catalog.find(following)
        self._watch.turns.ask(self, 0 if topic is None else self._watch.priority(topic))

    def _following(self) -> str | None:
        """Return the name of the topic that would be read next, or None."""
        if self._current is not None:
            return self._current.name
        if self._pass:
            return self._pass[0]
        return min(self._marked) if self._marked else None

    def _take_next(self) -> Subscription | None:
        """Make the next marked topic the current one. Return None if there is none."""
        while self._pass or self._marked:
            if not self._pass:
                self._pass.extend(sorted(self._marked))
            name = self._pass.popleft()
            self._marked.discard(name)
            found = self._subscriptions.get(name)
            if found is not None and not found.is_late:
                self._current = found
                return found
        return None

    # Reading one topic

    def _work(self) -> int:
        begins = self._current is None
        subscription = self._current or self._take_next()
        if subscription is None:
            return 0
        topic = self._engine.catalog.find(subscription.name)
        if topic is None:
            self._end(subscription)
            return _EVENT_COST
        if begins and (self._is_paced(subscription, topic) or self._bring(topic)):
            return 0
        subscription.target = subscription.target or topic.head
        return self._read(subscription, topic)

    def _end(self, subscription: Subscription) -> None:
        """Remove a subscription whose topic was deleted, and report the deletion."""
        head = subscription.place.head if subscription.topic is None else subscription.topic.head
        self.remove(subscription.name)
        self._outlet.deleted(subscription.name, head)

    def _bring(self, topic: Topic) -> bool:
        """Have the router copies that are due written into the topic. Return whether the feed waits for them."""
        waiting = self._engine.bring(topic)
        if waiting is None:
            return False
        self._wait(waiting)
        return True

    def _read(self, subscription: Subscription, topic: Topic) -> int:
        """Read one batch and pass it on, or start to wait for a block. Return the cost."""
        place, options = subscription.place, subscription.options
        if topic.config.ttl_ms:
            topic.expire(self._engine.time.now())
        cursor = place.cursor if place.epoch == topic.id else topic.head + 1
        head = topic.head
        up_to = None
        if options.strong:
            up_to = self._engine.synced_seq(topic)
            head = max(up_to, min(cursor, head))
            if up_to <= cursor <= topic.head:
                return self._parked(subscription, topic, head)
        found = self._watch.batches.read(topic, cursor, up_to, options)
        self._held = subscription.late = None
        if isinstance(found, Fetch):
            self._held = found
            self._wait(found)
            return 0
        self._deliver(subscription, topic, found, cursor, head)
        cost = _EVENT_COST + len(found.records)
        if place.cursor >= head:
            return cost + self._parked(subscription, topic, head)
        if place.cursor >= subscription.target:
            # The topic grows as fast as it is read: let the other topics of this feed go first, then continue.
            self._leave(subscription)
            self.mark(subscription)
        return cost

    def _deliver(self, subscription: Subscription, topic: Topic, batch: RenderedPage, cursor: int, head: int) -> None:
        place, page = subscription.place, batch.page
        place.epoch, place.head = topic.id, topic.head
        tombstone = page.tombstone
        if tombstone is not None:
            if subscription.first:
                tombstone = subscription.options.first_loss(tombstone)
            place.cursor = cursor = tombstone.seq - 1
            self._outlet.tombstone(subscription.name, tombstone)
        place.cursor = page.next_from_seq
        if batch.size:
            self._engine.touch(topic)
            self._outlet.records(subscription.name, batch, cursor, head)
        subscription.first = False
        subscription.topic = topic
        subscription.unavailable = False
        self._troubled = False

    def _parked(self, subscription: Subscription, topic: Topic, head: int) -> int:
        """Leave a topic that was read to its end. Send `caught_up` if this position was not reported yet."""
        self._leave(subscription)
        subscription.first = False
        subscription.topic = topic
        here = (topic.id, subscription.place.cursor)
        if subscription.told == here:
            return 0
        subscription.told = here
        self._outlet.caught_up(subscription.name, head)
        return _EVENT_COST

    def _leave(self, subscription: Subscription) -> None:
        subscription.target = 0
        self._current = None

    # Waiting

    def _wait(self, pending: Pending[None]) -> None:
        """Wait for a block or upstream of the current topic; after `_LATE_MS`, let only that topic wait."""
        subscription = self._current
        assert subscription is not None, "a feed waits for the topic that it reads"
        self._waiting = True
        timer = None
        if len(self) > 1 and not pending.settled:
            timer = self._watch.runtime.later(_LATE_MS, lambda: self._go_on_without(subscription, pending))

        def settled(done: Pending[None]) -> None:
            if timer is not None:
                timer.cancel()
            if subscription.late is done:
                self._came_late(subscription, done.error)
                return
            self._waiting = False
            if not self._closed:
                self._ask() if done.error is None else self._trouble(done.error)

        pending.then(settled)

    def _go_on_without(self, subscription: Subscription, pending: Pending[None]) -> None:
        """Continue with the other topics while this one waits."""
        if self._closed or pending.settled:
            return
        self._waiting = False
        self._held = None
        subscription.late = pending
        self._leave(subscription)
        self._ask()

    def _came_late(self, subscription: Subscription, error: BaseException | None) -> None:
        """Return to a topic that had to wait alone."""
        if self._closed or self._subscriptions.get(subscription.name) is not subscription:
            return
        if isinstance(error, SegmentUnavailableError):
            self._put_aside(subscription, error)
        elif error is not None:
            self._look_later(subscription, _TRY_AGAIN_MS)
        else:
            self.mark(subscription)

    def _trouble(self, error: BaseException) -> None:
        """If one topic is unavailable, continue with the others; after another failure, try all of them later."""
        subscription = self._current
        if subscription is None or not isinstance(error, SegmentUnavailableError):
            self._wait_a_while(error)
            return
        self._leave(subscription)
        self._put_aside(subscription, error)
        self._ask()

    def _put_aside(self, subscription: Subscription, error: SegmentUnavailableError) -> None:
        """Try a topic again later, and report once that it is unavailable."""
        self._look_later(subscription, _TRY_AGAIN_MS)
        if not subscription.unavailable:
            subscription.unavailable = True
            self._outlet.unavailable(subscription.name, error)
            self._outlet.flush()

    def _wait_a_while(self, error: BaseException) -> None:
        """Pause the whole feed for `_TRY_AGAIN_MS` ms. Log a warning for the first of several failures in a row."""
        if not self._troubled:
            self._troubled = True
            _log.warning("a watch stream waits because records cannot be read: %s", error)
        self._waiting = True
        self._watch.runtime.later(_TRY_AGAIN_MS, self._try_again)

    def _try_again(self) -> None:
        self._waiting = False
        self._ask()

    def _is_paced(self, subscription: Subscription, topic: Topic) -> bool:
        """Whether a topic of negative priority has to wait because the server is under pressure."""
        by_config = topic.config.priority or 0  # recent reads can only raise the priority
        if by_config >= 0 or self._engine.pressure.level < Level.PRESSED or self._watch.priority(topic) >= 0:
            subscription.paced = False
            return False
        self._leave(subscription)
        self._look_later(subscription, RETRY_MS)
        if not subscription.paced:
            subscription.paced = True
            self._outlet.paced([subscription.name], RETRY_MS)
            self._outlet.flush()
        return True

    def _look_later(self, subscription: Subscription, delay_ms: int) -> None:
        if not self._put_off:
            self._watch.runtime.later(delay_ms, self._look_again)
        self._put_off.add(subscription.name)

    def _look_again(self) -> None:
        put_off, self._put_off = self._put_off, set()
        self._marked |= put_off
        self._ask()
