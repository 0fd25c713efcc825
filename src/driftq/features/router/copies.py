"""Turns records of a source into copies: applies filter, node and tag rules, and adds the mark of `exactly_once`.

The mark is in a copy's meta (http-v0 §11.5): the source record and its topic, and the router. If the meta has no room
for another key, the original meta is wrapped in a key of its own next to the mark.
"""

from collections.abc import Sequence

from msgspec import Raw, json

from driftq.engine.state.block_cache import unavailable
from driftq.engine.state.topic import Topic
from driftq.features.router.destination import Router, Rule, SourceRun
from driftq.model.limits import META_KEYS_MAX
from driftq.model.router_spec import HOPS_MAX
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.rows import Rows, Texts

MARK = "_topics_router"
ORIGINAL_META = "_topics_original_meta"

_Column = list[bytes | None]
_meta = json.Decoder(dict[str, Raw])
_encoder = json.Encoder()


class CopyBatch:
    """Copies of some records in the order in which they will be written, with the router of each."""

    __slots__ = ("_batch_node", "_data", "_metas", "_nodes", "_tags", "hops", "last_seq", "owners", "seqs")

    def __init__(
        self,
        *,
        last_seq: int,
        hops: int,
        seqs: Sequence[int] = (),
        owners: Sequence[Router] = (),
        data: list[bytes] | None = None,
        tags: _Column | None = None,
        nodes: _Column | None = None,
        metas: _Column | None = None,
        batch_node: bytes | None = None,
    ) -> None:
        self.last_seq = last_seq
        """The last source seq that is finished when the whole batch is placed."""
        self.hops = hops
        """The number of hops of these copies."""
        self.seqs = seqs
        self.owners = owners
        self._data = data or []
        self._tags = tags
        self._nodes = nodes
        self._metas = metas
        self._batch_node = batch_node

    @property
    def count(self) -> int:
        """The number of copies in the batch."""
        return len(self._data)

    def only(self, places: list[int]) -> "CopyBatch":
        """Return a batch of only the copies at these places."""

        def picked(column: _Column | None) -> _Column | None:
            return None if column is None else [column[place] for place in places]

        return CopyBatch(
            last_seq=self.last_seq,
            hops=self.hops,
            seqs=[self.seqs[place] for place in places],
            owners=[self.owners[place] for place in places],
            data=[self._data[place] for place in places],
            tags=picked(self._tags),
            nodes=picked(self._nodes),
            metas=picked(self._metas),
            batch_node=self._batch_node,
        )

    def cursors_after(self, placed: int, active: list[tuple[Router, Rule]]) -> dict[Router, int]:
        """Return the routers' cursors after `placed` copies: the end of the batch, or before the first missing copy."""
        if placed == self.count:
            return {router: self.last_seq for router, _ in active}
        seq, owner = self.seqs[placed], self.owners[placed]
        return {router: seq - 1 if router.number >= owner.number else seq for router, _ in active}

    def sizes(self) -> list[int]:
        """Return the size of each copy in bytes, as caps count it."""
        if self._metas is None:
            return list(map(len, self._data))
        return [len(data) + len(meta or b"") for data, meta in zip(self._data, self._metas, strict=True)]

    def rows(self, first: int, last: int) -> Rows:
        """Return the copies from `first` to before `last` as rows to write."""
        return Rows(
            Texts.of(self._data[first:last]),
            tag=_texts(self._tags, first, last),
            node=_texts(self._nodes, first, last),
            meta=_texts(self._metas, first, last),
            batch_node=self._batch_node,
        )


def _texts(column: _Column | None, first: int, last: int) -> Texts | None:
    if column is None:
        return None
    values = column[first:last]
    return None if all(value is None for value in values) else Texts.of(values)


def copies_of(run: SourceRun, topic: Topic, active: list[tuple[Router, Rule]], hops: int) -> CopyBatch:
    """Return the copies that the active routers make of a run, whose records have made `hops` hops."""
    if hops >= HOPS_MAX or not active:
        return CopyBatch(last_seq=run.last_seq, hops=hops + 1)
    source, first, last = run.source, run.first, run.last
    if len(active) == 1 and active[0][1].match is None and not active[0][1].exactly_once:
        return _all_of(run, *active[0], hops)
    tags = source.tags(first, last)
    whom = _whom(active, tags, last - first)
    if not whom:
        return CopyBatch(last_seq=run.last_seq, hops=hops + 1)
    rows = [row for row, _ in whom]
    data, metas, nodes = source.data(first, last), source.metas(first, last), source.nodes(first, last)
    batch_node = source.batch_node
    if len(active) > 1 and batch_node is not None:
        nodes, batch_node = [batch_node] * (last - first), None
    kept_tags = [active[which][1].spec.preserve_tag for which in range(len(active))]
    kept_nodes = [active[which][1].spec.preserve_node for which in range(len(active))]
    seqs = [run.first_seq + row for row in rows]
    owners = [active[which][0] for _, which in whom]
    copied = None if metas is None else [metas[row] for row in rows]
    if any(rule.exactly_once for _, rule in active):
        copied = [
            _stamped(meta, topic, active[which][0], seq) if active[which][1].exactly_once else meta
            for meta, seq, (_, which) in zip(copied or [None] * len(whom), seqs, whom, strict=True)
        ]
    return CopyBatch(
        last_seq=run.last_seq,
        hops=hops + 1,
        seqs=seqs,
        owners=owners,
        data=[data[row] for row in rows],
        tags=_kept(tags, whom, kept_tags),
        nodes=_kept(nodes, whom, kept_nodes),
        metas=copied,
        batch_node=batch_node if any(kept_nodes) else None,
    )


def _all_of(run: SourceRun, router: Router, rule: Rule, hops: int) -> CopyBatch:
    """Return copies of all records, unchanged: the most frequent case."""
    source, first, last = run.source, run.first, run.last
    spec = rule.spec
    return CopyBatch(
        last_seq=run.last_seq,
        hops=hops + 1,
        seqs=range(run.first_seq, run.last_seq + 1),
        owners=[router] * (last - first),
        data=source.data(first, last),
        tags=source.tags(first, last) if spec.preserve_tag else None,
        nodes=source.nodes(first, last) if spec.preserve_node else None,
        metas=source.metas(first, last),
        batch_node=source.batch_node if spec.preserve_node else None,
    )


def _whom(active: list[tuple[Router, Rule]], tags: _Column | None, count: int) -> list[tuple[int, int]]:
    """Return pairs of row and index in `active`, for each router that takes the row."""
    if len(active) == 1 and active[0][1].match is None:
        return [(row, 0) for row in range(count)]
    takers = list(enumerate(rule.match for _, rule in active))
    return [
        (row, which)
        for row, tag in enumerate(tags or [None] * count)
        for which, match in takers
        if match is None or match.fits(tag)
    ]


def _kept(column: _Column | None, whom: list[tuple[int, int]], kept: list[bool]) -> _Column | None:
    if column is None or not any(kept):
        return None
    return [column[row] if kept[which] else None for row, which in whom]


def _stamped(meta: bytes | None, topic: Topic, router: Router, seq: int) -> bytes:
    """Return meta with the router's mark. Topic id and epoch are the same number; it is never reused."""
    mark = {
        "idempotency_key": f"router:{router.name}:{topic.id}:{topic.id}:{seq}",
        "router": router.name,
        "source_topic": topic.name,
        "source_topic_id": topic.id,
        "source_epoch": topic.id,
        "source_seq": seq,
    }
    if meta is None:
        return _encoder.encode({MARK: mark})
    fields: dict[str, object] = dict(_meta.decode(meta))
    fields.pop(MARK, None)
    if len(fields) >= META_KEYS_MAX:
        fields = {ORIGINAL_META: Raw(meta)}
    fields[MARK] = mark
    return _encoder.encode(fields)


def _marked_seqs(metas: Sequence[bytes | None], router: Router, topic: Topic) -> set[int]:
    """Return the source seqs that this router has copied, as found in these metas."""
    beginning = f"router:{router.name}:{topic.id}:{topic.id}:"
    found = set()
    for meta in metas:
        if meta is None or beginning.encode() not in meta:
            continue
        mark = _meta.decode(meta).get(MARK)
        key = json.decode(mark).get("idempotency_key", "") if mark is not None else ""
        if key.startswith(beginning):
            found.add(int(key[len(beginning) :]))
    return found


def first_too_large(batch: CopyBatch, sizes: Sequence[int], record_bytes_max: int) -> int | None:
    """Return the place of the first copy that its mark makes larger than `record_bytes_max`, or None."""
    if record_bytes_max and batch.count and max(sizes) > record_bytes_max:
        for place, (size, owner, seq) in enumerate(zip(sizes, batch.owners, batch.seqs, strict=True)):
            if size > record_bytes_max and owner.rule_at(seq)[0].exactly_once:
                return place
    return None


def copied_seqs(dest: Topic, router: Router) -> set[int]:
    """Return the source seqs whose copies by this router are live in dest. Used after a cursor has gone back.

    Raise SegmentUnavailableError if a segment of dest cannot be read.
    """
    known = router.known
    if known is not None and known[:2] == (dest.op, dest.earliest):
        return known[2]
    found: set[int] = set()
    for part in list(dest.parts(dest.earliest)):
        try:
            rows = dest.source(part)
        except OSError as error:
            raise unavailable(error, cold=part.segment.cold) from error
        metas = None if rows is None else rows.metas(0, part.count)
        if metas is None:
            continue
        dead = dest.dead_of(part)
        live = [
            meta
            for row, meta in enumerate(metas)
            if part.first_seq + row >= dest.earliest and (dead is None or dead.flags[row] != DELETED)
        ]
        found |= _marked_seqs(live, router, router.source)
    router.known = (dest.op, dest.earliest, found)
    return found
