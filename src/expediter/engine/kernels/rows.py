"""What happens to rows between the products: RMSNorm, rotation with storing, and the gate."""

from expediter.engine.kernels.emit import FLOATS, LANES, Emitter, number, repeated
from expediter.engine.kernels.region import TEAM, region, share
from expediter.engine.kernels.vectors import (
    ZERO,
    binary,
    exp,
    fma,
    load_bf16,
    splat,
    store_bf16,
    sum_of,
)

VECTOR_BYTES = 2 * LANES


def normalize(name: str, *, width: int, epsilon: float) -> str:
    """x / sqrt(sum(x^2) + epsilon) of each row."""
    emitter = Emitter(name, ["ptr %rows", "ptr %output", "i64 %num_rows"])
    with emitter.loop("0", "%num_rows") as row:
        source = emitter.at("%rows", emitter.mul(row, str(2 * width)))
        target = emitter.at("%output", emitter.mul(row, str(2 * width)))
        total = emitter.variable(FLOATS, ZERO)
        with emitter.loop("0", str(2 * width), VECTOR_BYTES) as offset:
            elements = load_bf16(emitter, emitter.at(source, offset))
            total.set(fma(emitter, elements, elements, total.get()))
        square = emitter.op(f"fadd float {sum_of(emitter, total.get())}, {number(epsilon)}")
        root = emitter.call("float", "llvm.sqrt.f32", f"float {square}")
        factor = splat(emitter, emitter.op(f"fdiv float {number(1.0)}, {root}"))
        with emitter.loop("0", str(2 * width), VECTOR_BYTES) as offset:
            elements = load_bf16(emitter, emitter.at(source, offset))
            store_bf16(
                emitter, binary(emitter, "fmul", elements, factor), emitter.at(target, offset)
            )
    return emitter.text()


def place(name: str, *, num_heads: int, num_kv_heads: int, head_size: int) -> str:
    """Turns queries and keys by their positions, and writes keys and values to the pool."""
    parameters = (
        "ptr %heads",  # bfloat16 [row, head, element]: queries, keys, values
        "ptr %cosine",  # bfloat16 [row, element]
        "ptr %sine",  # the same; negative for the first half of the elements
        "ptr %pool",  # bfloat16 [slot of a head, element]
        "ptr %slots",  # i64 [row, K heads then V heads]
        "i64 %num_rows",
    )
    emitter = Emitter(name, parameters)
    size, num_runs = 2 * head_size, 2 * num_kv_heads
    with emitter.loop("0", "%num_rows") as row:
        line = emitter.mul(row, str((num_heads + num_runs) * size))
        heads = emitter.at("%heads", line)
        cosine = emitter.at("%cosine", emitter.mul(row, str(size)))
        sine = emitter.at("%sine", emitter.mul(row, str(size)))
        with emitter.loop("0", str(num_heads + num_kv_heads)) as head:
            _turn(emitter, emitter.at(heads, emitter.mul(head, str(size))), cosine, sine, size)
        slots = emitter.at("%slots", emitter.mul(row, str(num_runs)), "i64")
        written = emitter.at(heads, num_heads * size)
        with emitter.loop("0", str(num_runs)) as run:
            slot = emitter.load("i64", emitter.at(slots, run, "i64"), align=8)
            source = emitter.at(written, emitter.mul(run, str(size)))
            target = emitter.at("%pool", emitter.mul(slot, str(size)))
            for offset in range(0, size, VECTOR_BYTES):
                value = emitter.load("<16 x i16>", emitter.at(source, offset))
                emitter.store("<16 x i16>", value, emitter.at(target, offset))
    return emitter.text()


def _turn(emitter: Emitter, head: str, cosine: str, sine: str, size: int) -> None:
    for low in range(0, size // 2, VECTOR_BYTES):
        places = (low, low + size // 2)
        elements = [load_bf16(emitter, emitter.at(head, place)) for place in places]
        for place, own, other in zip(places, elements, elements[::-1], strict=True):
            straight = binary(emitter, "fmul", own, load_bf16(emitter, emitter.at(cosine, place)))
            across = load_bf16(emitter, emitter.at(sine, place))
            store_bf16(emitter, fma(emitter, other, across, straight), emitter.at(head, place))


def gate(name: str, *, width: int) -> str:
    """silu(gate) * up, where a row has `width` gates and then as many ups."""
    parameters = ("ptr %rows", "ptr %output", "i64 %num_rows")
    emitter = Emitter(f"{name}.work", [*parameters, *TEAM], is_public=False)
    first, end = share(emitter, emitter.mul("%num_rows", str(width // LANES)))
    with emitter.loop(first, end) as index:
        row, _ = emitter.split(index, str(width // LANES))
        # A row of the input is twice as long: skip as many gates as there are rows before.
        skipped = emitter.add(index, emitter.mul(row, str(width // LANES)))
        place = emitter.at("%rows", emitter.mul(skipped, str(VECTOR_BYTES)))
        gates, ups = load_bf16(emitter, place), load_bf16(emitter, emitter.at(place, 2 * width))
        power = exp(emitter, emitter.op(f"fneg {FLOATS} {gates}"))
        opened = binary(emitter, "fdiv", gates, binary(emitter, "fadd", power, repeated(1.0)))
        target = emitter.at("%output", emitter.mul(index, str(VECTOR_BYTES)))
        store_bf16(emitter, binary(emitter, "fmul", opened, ups), target)
    return "\n".join([emitter.text(), region(name, parameters)])
