"""Attention of single tokens over paged keys and values, read where they lie.

A context is cut into segments of a fixed length, each with its own softmax; a thread takes a
segment of one KV head at a time, for all query heads that share it, and at the end the
segments are put together by their maxima and sums (as in flash decoding, Dao et al. 2023).
Where segments end depends on positions alone, so a request's result does not depend on who
else is in the step, nor on the number of threads.
"""

from dataclasses import dataclass

from expediter.engine.kernels.emit import FLOATS, LANES, PAIRS, Emitter, Variable, repeated
from expediter.engine.kernels.region import TEAM, region
from expediter.engine.kernels.vectors import (
    ZERO,
    binary,
    dot,
    exp,
    fma,
    lane_sums,
    largest_of,
    load_bf16,
    maximum,
    splat,
    store_bf16,
    sum_of,
)

SEGMENT = 256  # slots
TILE = 16  # slots whose scores make one vector
PARAMETERS = (
    "ptr %query",  # bfloat16 [request, KV head, query of it, element], scaled
    "i64 %query_stride",  # bytes from one request's to the next one's
    "ptr %pool",  # bfloat16 [block, layer, K or V, KV head, slot, element], from this layer on
    "i64 %run_bytes",  # of one head's keys in a block
    "ptr %tables",  # i64 [request, block]
    "i64 %table_width",
    "ptr %lengths",  # i64 [request]: tokens of context, this one included
    "ptr %partial",  # i64 counter, then the segments' results
    "ptr %output",  # bfloat16 [request, KV head, query of it, element]
    "i64 %num_requests",
    "i64 %num_segments",  # of the longest context
)
_COUNTER_BYTES = 64
_FORBIDDEN = -1e30  # a score whose exp is 0; minus infinity would make NaN of it
_ACCUMULATORS = 16  # vectors that stay in registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a kernel is made for; the layers are those of a block."""

    num_layers: int
    num_kv_heads: int
    num_shared: int
    head_size: int
    block_size: int

    @property
    def is_served(self) -> bool:
        """Whether elements and slots come in whole vectors."""
        return self.head_size % (2 * LANES) == 0 and self.block_size % TILE == 0

    @property
    def slots_per_block(self) -> int:
        """From a slot to the same one of the next block."""
        return self.num_layers * 2 * self.num_kv_heads * self.block_size

    @property
    def record_floats(self) -> int:
        """Of one query in one segment: weighted values, then the maximum and the sum."""
        return self.head_size + LANES

    def partial_bytes(self, num_requests: int, num_segments: int) -> int:
        """Room that a call needs."""
        records = num_requests * num_segments * self.num_kv_heads * self.num_shared
        return _COUNTER_BYTES + 4 * records * self.record_floats


def decode_attention(name: str, shape: Shape) -> str:
    """The function for one shape."""
    whole = region(name, PARAMETERS, prepare=True, finish=True)
    prepare = Emitter(f"{name}.prepare", PARAMETERS, is_public=False)
    prepare.store("i64", "0", "%partial", align=8)
    return "\n".join([prepare.text(), _work(name, shape), _finish(name, shape), whole])


def _work(name: str, shape: Shape) -> str:
    emitter = Emitter(f"{name}.work", [*PARAMETERS, *TEAM], is_public=False)
    units = emitter.mul(emitter.mul("%num_requests", "%num_segments"), str(shape.num_kv_heads))
    with emitter.claimed("%partial", units) as unit:
        rest, head = emitter.split(unit, str(shape.num_kv_heads))
        request, segment = emitter.split(rest, "%num_segments")
        length = emitter.load("i64", emitter.at("%lengths", request, "i64"), align=8)
        start = emitter.mul(segment, str(SEGMENT))
        with emitter.when(emitter.op(f"icmp slt i64 {start}, {length}")):
            table = emitter.at("%tables", emitter.mul(request, "%table_width"), "i64")
            stop = emitter.smaller(length, emitter.add(start, str(SEGMENT)))
            span = Span(emitter=emitter, shape=shape, table=table, start=start, stop=stop)
            scores = emitter.room(f"[{shape.num_shared * SEGMENT} x float]")
            query = emitter.at("%query", emitter.mul(request, "%query_stride"))
            offset = emitter.mul(head, str(2 * shape.num_shared * shape.head_size))
            keys = emitter.at("%pool", emitter.mul(head, "%run_bytes"))
            values = emitter.at(keys, emitter.mul("%run_bytes", str(shape.num_kv_heads)))
            record = _record(emitter, shape, unit)
            largest = span.score(emitter.at(query, offset), keys, scores)
            span.weigh(scores, largest, record)
            span.sum_values(values, scores, record)
    return emitter.text()


def _record(emitter: Emitter, shape: Shape, unit: str) -> str:
    size = 4 * shape.num_shared * shape.record_floats
    return emitter.at("%partial", emitter.add(emitter.mul(unit, str(size)), str(_COUNTER_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The slots from `start` to `stop` of one request, for one KV head."""

    emitter: Emitter
    shape: Shape
    table: str
    start: str
    stop: str

    def score(self, query: str, keys: str, scores: str) -> list[Variable]:
        """Fills `scores` [query, slot]; maxima by lane for each query."""
        emitter, shape = self.emitter, self.shape
        largest = [emitter.variable(FLOATS, repeated(_FORBIDDEN)) for _ in range(shape.num_shared)]
        with emitter.loop(self.start, self.stop, TILE) as slot:
            lines = self._slot(keys, slot)
            is_seen = self._seen(slot)
            place = emitter.op(f"sub i64 {slot}, {self.start}")
            for index, highest in enumerate(largest):
                own = emitter.at(query, 2 * index * shape.head_size)
                raw = lane_sums(emitter, [self._product(own, lines, i) for i in range(TILE)])
                masked = emitter.op(
                    f"select <16 x i1> {is_seen}, {FLOATS} {raw}, {FLOATS} {repeated(_FORBIDDEN)}"
                )
                target = emitter.at(scores, emitter.add(place, str(index * SEGMENT)), "float")
                emitter.store(FLOATS, masked, target, align=64)
                highest.set(maximum(emitter, highest.get(), masked))
        return largest

    def weigh(self, scores: str, largest: list[Variable], record: str) -> None:
        """Turns scores into exp(score - largest), and records the largest and their sum."""
        emitter, shape = self.emitter, self.shape
        length = emitter.op(f"sub i64 {self.stop}, {self.start}")
        for index, highest in enumerate(largest):
            peak = largest_of(emitter, highest.get())
            peaks = splat(emitter, peak)
            total = emitter.variable(FLOATS, ZERO)
            with emitter.loop("0", length, TILE) as slot:
                place = emitter.at(scores, emitter.add(slot, str(index * SEGMENT)), "float")
                score = emitter.load(FLOATS, place, align=64)
                weight = exp(emitter, binary(emitter, "fsub", score, peaks))
                emitter.store(FLOATS, weight, place, align=64)
                total.set(binary(emitter, "fadd", total.get(), weight))
            end = emitter.at(record, index * shape.record_floats + shape.head_size, "float")
            emitter.store("float", peak, end, align=4)
            total_place = emitter.at(end, 1, "float")
            emitter.store("float", sum_of(emitter, total.get()), total_place, align=4)

    def sum_values(self, values: str, weights: str, record: str) -> None:
        """Records each query's values times its weights."""
        num_vectors = self.shape.head_size // LANES
        step = max(1, _ACCUMULATORS // num_vectors)
        for first in range(0, self.shape.num_shared, step):
            queries = range(first, min(first + step, self.shape.num_shared))
            self._sum_for(queries, values, weights, record)

    def _sum_for(self, queries: range, values: str, weights: str, record: str) -> None:
        emitter, size = self.emitter, self.shape.head_size
        parts = range(size // LANES)
        sums = {
            (query, part): emitter.variable(FLOATS, ZERO) for query in queries for part in parts
        }
        with emitter.loop(self.start, self.stop, TILE) as tile:
            lines = self._slot(values, tile)
            place = emitter.op(f"sub i64 {tile}, {self.start}")
            count = emitter.smaller(emitter.op(f"sub i64 {self.stop}, {tile}"), str(TILE))
            with emitter.loop("0", count) as index:
                line = emitter.at(lines, emitter.mul(index, str(2 * size)))
                elements = [load_bf16(emitter, emitter.at(line, 32 * part)) for part in parts]
                slot = emitter.add(place, index)
                for query in queries:
                    where = emitter.at(weights, emitter.add(slot, str(query * SEGMENT)), "float")
                    weight = splat(emitter, emitter.load("float", where, align=4))
                    for part in parts:
                        total = sums[query, part]
                        total.set(fma(emitter, elements[part], weight, total.get()))
        for (query, part), total in sums.items():
            offset = query * self.shape.record_floats + part * LANES
            emitter.store(FLOATS, total.get(), emitter.at(record, offset, "float"), align=64)

    def _slot(self, run: str, slot: str) -> str:
        """Where a head's elements for a slot are, and those for the rest of its tile."""
        emitter, shape = self.emitter, self.shape
        index, inside = emitter.split(slot, str(shape.block_size))
        block = emitter.load("i64", emitter.at(self.table, index, "i64"), align=8)
        line = emitter.add(emitter.mul(block, str(shape.slots_per_block)), inside)
        return emitter.at(run, emitter.mul(line, str(2 * shape.head_size)))

    def _seen(self, slot: str) -> str:
        """Which of a tile's lanes are before `stop`."""
        emitter = self.emitter
        left = emitter.op(f"sub i64 {self.stop}, {slot}")
        count = splat(emitter, emitter.op(f"trunc i64 {left} to i32"), "i32")
        lanes = ", ".join(f"i32 {lane}" for lane in range(LANES))
        return emitter.op(f"icmp slt <16 x i32> <{lanes}>, {count}")

    def _product(self, query: str, lines: str, index: int) -> str:
        """The query times a tile's key of that index, spread over the lanes of a vector."""
        emitter, size = self.emitter, 2 * self.shape.head_size
        total = ZERO
        for offset in range(0, size, 4 * LANES):
            key = emitter.load(PAIRS, emitter.at(lines, index * size + offset))
            own = emitter.load(PAIRS, emitter.at(query, offset))
            total = dot(emitter, total, own, key)
        return total


def _finish(name: str, shape: Shape) -> str:
    emitter = Emitter(f"{name}.finish", PARAMETERS, is_public=False)
    line = 2 * shape.num_kv_heads * shape.num_shared * shape.head_size
    with emitter.loop("0", "%num_requests") as request:
        length = emitter.load("i64", emitter.at("%lengths", request, "i64"), align=8)
        last, _ = emitter.split(emitter.add(length, str(SEGMENT - 1)), str(SEGMENT))
        first = emitter.mul(request, "%num_segments")
        with emitter.loop("0", str(shape.num_kv_heads)) as head:
            unit = emitter.add(emitter.mul(first, str(shape.num_kv_heads)), head)
            start = _record(emitter, shape, unit)
            target = emitter.at("%output", emitter.mul(request, str(line)))
            width = 2 * shape.num_shared * shape.head_size
            target = emitter.at(target, emitter.mul(head, str(width)))
            with emitter.loop("0", str(shape.num_shared)) as query:
                record = emitter.at(start, emitter.mul(query, str(4 * shape.record_floats)))
                place = emitter.at(target, emitter.mul(query, str(2 * shape.head_size)))
                _join(emitter, shape, record, last, place)
    return emitter.text()


def _join(emitter: Emitter, shape: Shape, record: str, num_segments: str, place: str) -> None:
    """One query's output from its records, which are a head's records of all heads apart."""
    apart = 4 * shape.num_kv_heads * shape.num_shared * shape.record_floats
    highest = emitter.variable(FLOATS, repeated(_FORBIDDEN))
    with emitter.loop("0", num_segments) as segment:
        end = emitter.at(
            record, emitter.add(emitter.mul(segment, str(apart)), str(4 * shape.head_size))
        )
        peak = splat(emitter, emitter.load("float", end, align=4))
        highest.set(maximum(emitter, highest.get(), peak))
    total = emitter.variable(FLOATS, ZERO)
    sums = [emitter.variable(FLOATS, ZERO) for _ in range(shape.head_size // LANES)]
    with emitter.loop("0", num_segments) as segment:
        own = emitter.at(record, emitter.mul(segment, str(apart)))
        end = emitter.at(own, shape.head_size, "float")
        peak = splat(emitter, emitter.load("float", end, align=4))
        factor = exp(emitter, binary(emitter, "fsub", peak, highest.get()))
        weight = splat(emitter, emitter.load("float", emitter.at(end, 1, "float"), align=4))
        total.set(fma(emitter, factor, weight, total.get()))
        for part, accumulated in enumerate(sums):
            values = emitter.load(FLOATS, emitter.at(own, part * LANES, "float"), align=64)
            accumulated.set(fma(emitter, factor, values, accumulated.get()))
    for part, accumulated in enumerate(sums):
        result = binary(emitter, "fdiv", accumulated.get(), total.get())
        store_bf16(emitter, result, emitter.at(place, 2 * LANES * part))
