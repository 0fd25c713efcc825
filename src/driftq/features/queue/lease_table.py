"""The lease table of one topic: which of its jobs are held, delayed, given back, and how often each was delivered.

    fresh ─claim─► held ─ack─► settling ─commit─► done              fresh: above `cursor`, never given out
      ▲             │ │ ├─nack─► settling ─commit─► reclaimed or delayed
      │             │ │ └─extend─► extending ─commit─► held, or already acked or nacked
      │             │ └─deadline passed─► reclaimed ─claim─► held
    append          └─nack with a delay─► delayed ─moment come─► reclaimed

Pure: the table has no access to clock, log or records. Its callers pass the time and the records that are gone
(`drop`, `drop_below`), and call `apply` when an event has reached its commit point, live or in replay.

Invariants
- A job is in at most one of `held`, `settling`, `extending`, `delayed` and the reclaim list. A live job at or below
  `cursor` that is in none of them is *taken*: a running claim has it, and will grant it or give it back.
- A lease is valid while `clock <= deadline`. `clock` never goes back, so an expired lease never becomes valid again.
- Each claim has one `Lease` and one entry in the deadline heap, however many jobs it has. Per job, the table stores
  only its entry in `held`, and its number of deliveries if that is not one.
- `frontier` is the highest job of any applied grant: a restart takes all jobs up to it as handed out. `cursor` is never
  below it.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from driftq.features.queue.lease_events import Grant, LeaseEvent, Release, TableState

_STALE_MIN = 64


class Lease:
    """The jobs of one claim with a common deadline: `seqs` at first, `left` is how many it still holds."""

    __slots__ = ("deadline", "left", "node", "number", "seqs", "stream")

    def __init__(self, number: int, node: str, deadline: int, seqs: list[int], stream: set[int] | None) -> None:
        self.number = number
        self.node = node
        self.deadline = deadline
        self.seqs = seqs
        self.left = len(seqs)
        self.stream = stream
        """The jobs held through one connection, if jobs are pushed to it."""


def lease_id(number: int, seq: int) -> str:
    """Return the id of one delivery, which is unique in the topic."""
    return f"lease_{number:x}{seq:016x}"


class LeaseTable:
    """All leases and delayed jobs of one topic."""

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        self.settling: dict[int, Lease] = {}
        """Acked or nacked jobs whose commit is pending."""
        self.extending: dict[int, Lease] = {}
        """Extended jobs whose commit is pending. They do not expire, and their holder can settle or extend them."""
        self.delayed: dict[int, int] = {}
        """Jobs that were given back, and the time from which they can be claimed."""
        self.frontier = 0
        self.cursor = 0
        self.clock = 0
        self.dead_lettered = 0
        self.logged = False
        """Whether the log describes the leases as they are."""
        self.owed: list[Release] = []
        """Leases that expired or whose ack failed, and that are not in the log yet."""
        self.streams: dict[int, set[int]] = {}
        """For pending claims: grant number to the set of jobs held through its connection."""
        self.seen_earliest = 0
        self.seen_deleted = 0
        """The losses of the topic that this table has followed."""
        self._counts: dict[int, int] = {}
        self._reclaimed: list[int] = []
        self._deadlines: list[tuple[int, int, int, Lease]] = []
        self._delays: list[tuple[int, int]] = []
        self._stale = 0
        self._age = 0

    @property
    def in_flight(self) -> int:
        """The number of jobs that are held or being settled or extended."""
        return len(self.held) + len(self.settling) + len(self.extending)

    def leased(self, seq: int) -> Lease | None:
        """Return the lease of a job that is held and not being settled, or None."""
        return self.held.get(seq) or self.extending.get(seq)

    def deliveries(self, seq: int) -> int:
        """Return how often a job at or below the cursor was delivered."""
        return self._counts.get(seq, 1)

    # Time

    def sweep(self, now: int) -> bool:
        """Make expired leases and finished delays claimable. Return whether there were any."""
        self.clock = now = max(self.clock, now)
        found = False
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now:
            lease = heappop(deadlines)[3]
            if lease.left:
                found = True
                self._expire(lease)
            else:
                self._stale -= 1
        delays = self._delays
        while delays and delays[0][0] <= now:
            until, seq = heappop(delays)
            if self.delayed.get(seq) == until:
                found = True
                del self.delayed[seq]
                heappush(self._reclaimed, seq)
        return found

    def _expire(self, lease: Lease) -> None:
        held = self.held
        seqs = [seq for seq in lease.seqs if held.get(seq) is lease]
        for seq in seqs:
            del held[seq]
            heappush(self._reclaimed, seq)
        if lease.stream is not None:
            lease.stream.difference_update(seqs)
        lease.left = 0
        if self.logged:
            self.owed.append(Release(lease.number, seqs))

    def next_due(self) -> int | None:
        """Return the next time at which a sweep may find something, or None."""
        moments = []
        if self._deadlines:
            moments.append(self._deadlines[0][0] + 1)
        if self._delays:
            moments.append(self._delays[0][0])
        return min(moments, default=None)

    # Handing out

    def reclaim(self, limit: int) -> list[int]:
        """Take up to `limit` jobs that were given back, lowest seq first. Records of some of them may be gone."""
        heap = self._reclaimed
        return [heappop(heap) for _ in range(min(limit, len(heap)))]

    def give_back(self, seqs: Iterable[int], *, fresh: bool = False) -> None:
        """Return jobs that were taken and not granted. With `fresh`, they count as never delivered."""
        for seq in seqs:
            heappush(self._reclaimed, seq)
            if fresh:
                self._counts[seq] = 0

    def has_reclaimed(self) -> bool:
        """Whether a job was given back and waits for a claim."""
        return bool(self._reclaimed)

    # Settling

    def take(self, node: str, seqs: Sequence[int], tokens: Sequence[str]) -> tuple[dict[int, Lease], list[int]]:
        """Move the jobs that the node holds (under these tokens, if given) to `settling`. Return them,
        and the others.
        """
        taken, skipped = self._take(node, seqs, tokens)
        self.settling.update(taken)
        return taken, skipped

    def take_to_extend(
        self, node: str, seqs: Sequence[int], tokens: Sequence[str]
    ) -> tuple[dict[int, Lease], list[int]]:
        """Move the jobs that the node holds (under these tokens, if given) to `extending`. Return them, and the
        others.
        """
        taken, skipped = self._take(node, seqs, tokens)
        self.extending.update(taken)
        return taken, skipped

    def _take(self, node: str, seqs: Sequence[int], tokens: Sequence[str]) -> tuple[dict[int, Lease], list[int]]:
        held, extending = self.held, self.extending
        taken: dict[int, Lease] = {}
        skipped: list[int] = []
        fenced = any(tokens)
        for place, seq in enumerate(seqs):
            lease = held.get(seq) or (extending.get(seq) if extending else None)
            if (
                lease is None
                or lease.node != node
                or seq in taken
                or (fenced and tokens[place] and tokens[place] != lease_id(lease.number, seq))
            ):
                skipped.append(seq)
                continue
            taken[seq] = lease
            if held.pop(seq, None) is None:
                del extending[seq]
                continue
            lease.left -= 1
            if not lease.left:
                self._stale += 1
        self._drop_stale()
        return taken, skipped

    def done(self, seqs: Iterable[int]) -> None:
        """Forget jobs whose deletes are committed."""
        counts, settling = self._counts, self.settling
        for seq in seqs:
            lease = settling.pop(seq, None)
            if lease is not None and lease.stream is not None:
                lease.stream.discard(seq)
            if counts:
                counts.pop(seq, None)

    def hold_again(self, taken: dict[int, Lease]) -> None:
        """Undo `take` or `take_to_extend`: the jobs are held as before."""
        for known in (self.settling, self.extending):
            for lease, seqs in by_lease(taken, known):
                for seq in seqs:
                    del known[seq]
                self._hold(Lease(lease.number, lease.node, lease.deadline, seqs, lease.stream))

    def release_settling(self, taken: dict[int, Lease]) -> None:
        """Make jobs claimable again whose ack failed, because it is unknown whether they were deleted."""
        for lease, seqs in by_lease(taken, self.settling):
            self.apply(LeaseEvent(self.clock, [Release(lease.number, seqs)]))
            if self.logged:
                self.owed.append(Release(lease.number, seqs))

    # Records that are gone

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget jobs whose records no longer exist."""
        for seq in seqs:
            self._counts.pop(seq, None)
            self.delayed.pop(seq, None)
            self._let_go(seq)

    def drop_below(self, earliest: int) -> None:
        """Forget all jobs below `earliest`."""
        passed = range(self.seen_earliest, earliest)
        self.seen_earliest = earliest
        for known in (self.held, self.settling, self.extending, self.delayed):
            if not known:
                continue
            if len(passed) > len(known):
                self.drop([seq for seq in known if seq < earliest])
            elif not known.keys().isdisjoint(passed):
                self.drop([seq for seq in passed if seq in known])

    # Events

    def apply(self, event: LeaseEvent) -> None:
        """Apply the changes of one call at its commit point. Releases of leases that are not current are ignored."""
        self.clock = max(self.clock, event.clock)
        for release in event.releases:
            self._apply_release(release)
        for grant in event.grants:
            self._apply_grant(grant)

    def _apply_release(self, release: Release) -> None:
        for seq in release.seqs:
            lease = self.leased(seq) or self.settling.get(seq)
            if lease is None or lease.number != release.number:
                continue
            self._let_go(seq)
            if release.until > self.clock:
                self.delayed[seq] = release.until
                heappush(self._delays, (release.until, seq))
            else:
                heappush(self._reclaimed, seq)

    def _apply_grant(self, grant: Grant) -> None:
        if grant.extends:
            self._apply_extension(grant)
            return
        seqs = grant.seqs
        for known in (self.held, self.delayed):
            if known and not known.keys().isdisjoint(seqs):
                for seq in seqs:
                    self.delayed.pop(seq, None)
                    self._let_go(seq)
        self._counts.update(grant.counts)
        self.frontier = max(self.frontier, seqs[-1])
        self.cursor = max(self.cursor, self.frontier)
        stream = self.streams.pop(grant.number, None)
        self._hold(Lease(grant.number, grant.node, grant.deadline, seqs, stream))

    def _apply_extension(self, grant: Grant) -> None:
        """Apply a new deadline. Jobs that were settled, dropped or leased again meanwhile are ignored."""
        seqs: list[int] = []
        stream = None
        for seq in grant.seqs:
            lease = self.leased(seq)
            if lease is not None and lease.number == grant.number:
                self._let_go(seq)
                seqs.append(seq)
                stream = lease.stream
        if seqs:
            self._hold(Lease(grant.number, grant.node, grant.deadline, seqs, stream))

    def _hold(self, lease: Lease) -> None:
        self.held.update(dict.fromkeys(lease.seqs, lease))
        if lease.stream is not None:
            lease.stream.update(lease.seqs)
        self._age += 1
        heappush(self._deadlines, (lease.deadline, lease.number, self._age, lease))

    def _let_go(self, seq: int) -> None:
        """End the lease of one job."""
        lease = self.held.pop(seq, None)
        if lease is not None:
            lease.left -= 1
            self._stale += not lease.left
        else:
            lease = self.settling.pop(seq, None) or self.extending.pop(seq, None)
        if lease is not None and lease.stream is not None:
            lease.stream.discard(seq)

    def _drop_stale(self) -> None:
        """Remove leases without jobs from the heap when they are more than half of it."""
        if self._stale > _STALE_MIN and 2 * self._stale > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if entry[3].left]
            heapify(self._deadlines)
            self._stale = 0

    # Checkpoints and restarts

    def capture(self) -> TableState:
        """Return the state that a restart needs. Jobs being settled count as held: a later frame settles them."""
        if not self.logged:
            return TableState(self.dead_lettered)
        grants = [
            Grant(lease.number, lease.node, lease.deadline, sorted(seqs))
            for lease, seqs in by_lease({**self.held, **self.settling, **self.extending})
        ]
        counts = sorted(self._counts.items())
        return TableState(self.dead_lettered, self.clock, self.frontier, grants, sorted(self.delayed.items()), counts)

    @classmethod
    def of(cls, state: TableState) -> "LeaseTable":
        """Return the table of a checkpoint. `rebuild` completes it after the rest of the log was read."""
        table = cls()
        table.dead_lettered, table.clock = state.dead_lettered, state.clock
        table.frontier = table.cursor = state.frontier
        table._counts.update(state.counts)
        table.logged = True
        for grant in state.grants:
            table._hold(Lease(grant.number, grant.node, grant.deadline, grant.seqs, None))
        for seq, until in state.delayed:
            table.delayed[seq] = until
            heappush(table._delays, (until, seq))
        return table

    def rebuild(self, live: Iterable[int]) -> None:
        """Complete the table after a restart: live jobs up to the frontier, unless held or delayed, are claimable."""
        here = set(live)
        self.drop([seq for seq in (*self.held, *self.delayed) if seq not in here])
        self._counts = {seq: count for seq, count in self._counts.items() if seq in here}
        self._reclaimed = sorted(here - self.held.keys() - self.delayed.keys())


def by_lease(seqs: dict[int, Lease], among: dict[int, Lease] | None = None) -> list[tuple[Lease, list[int]]]:
    """Group jobs by their lease; with `among`, only jobs that are still in it under the same lease."""
    groups: dict[Lease, list[int]] = {}
    for seq, lease in seqs.items():
        if among is None or among.get(seq) is lease:
            groups.setdefault(lease, []).append(seq)
    return list(groups.items())
