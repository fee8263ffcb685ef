"""Rows times a matrix of four-bit codes: up to eight rows in one pass over the codes.

Codes become bfloat16 by looking them up, exactly; the products of a group are summed in
float32, and the group's scale is applied to the sum instead of to 32 weights. Its minimum
needs just the sum of the row's elements, which is the same for every column and taken once.
"""

from expediter.engine.int4 import GROUP
from expediter.engine.kernels.emit import FLOATS, PAIRS, Emitter, Variable
from expediter.engine.kernels.region import TEAM, region, share
from expediter.engine.kernels.vectors import (
    ZERO,
    binary,
    dot,
    fma,
    load_bf16,
    load_fp16,
    splat,
    splat_pair,
    store_bf16,
    sum_of,
)

ROWS_PER_PASS = 8  # at most: each has two vectors of sums in registers
COLUMNS = 16  # of a tile
CODE_BYTES = COLUMNS * GROUP // 2
TILE_BYTES = CODE_BYTES + 2 * 2 * COLUMNS  # codes, then float16 scales and minimums
CODES_PER_LANE = 4  # in 16 bits
LARGEST_SCALE = 1024.0  # of float16's range; what is much smaller loses bits
_VECTOR_BYTES = 64
_ROW_BYTES = 2 * GROUP  # bfloat16 elements of one row in a group

PARAMETERS = (
    "ptr %rows",  # bfloat16 [row, group, 32]
    "ptr %gain",  # float32 [group, 32]
    "ptr %scaled",  # room for rows times gain, bfloat16 [group, row, 32]
    "ptr %sums",  # room for their sums, float32 [group, row]
    "ptr %tiles",  # [tile of columns, group]
    "ptr %output",  # bfloat16 [row, column]
    "i64 %num_groups",
    "i64 %num_tiles",
)


def int4_product(name: str, num_rows: int) -> str:
    """The function for so many rows."""
    whole = region(name, PARAMETERS, prepare=True)
    return "\n".join([_prepare(name, num_rows), _work(name, num_rows), whole])


def _prepare(name: str, num_rows: int) -> str:
    emitter = Emitter(f"{name}.prepare", PARAMETERS, is_public=False)
    size = emitter.mul("%num_groups", str(_ROW_BYTES))
    with emitter.loop("0", "%num_groups") as group:
        gain = emitter.at("%gain", emitter.mul(group, str(GROUP)), "float")
        gains = [emitter.load(FLOATS, emitter.at(gain, half, FLOATS), align=4) for half in (0, 1)]
        scaled = emitter.at("%scaled", emitter.mul(group, str(num_rows * _ROW_BYTES)))
        sums = emitter.at("%sums", emitter.mul(group, str(num_rows)), "float")
        source = emitter.at("%rows", emitter.mul(group, str(_ROW_BYTES)))
        for row in range(num_rows):
            target = emitter.at(scaled, row * _ROW_BYTES)
            for half in (0, 1):
                elements = load_bf16(emitter, emitter.at(source, 32 * half))
                product = binary(emitter, "fmul", elements, gains[half])
                store_bf16(emitter, product, emitter.at(target, 32 * half))
            pairs = emitter.load(PAIRS, target)
            total = sum_of(emitter, dot(emitter, ZERO, pairs, "splat (bfloat 1.0)"))
            emitter.store("float", total, emitter.at(sums, row, "float"), align=4)
            source = emitter.at(source, size)
    return emitter.text()


def _work(name: str, num_rows: int) -> str:
    emitter = Emitter(f"{name}.work", [*PARAMETERS, *TEAM], is_public=False)
    first, end = share(emitter, "%num_tiles")
    with emitter.loop(first, end) as index:
        totals = [emitter.variable(FLOATS, ZERO) for _ in range(num_rows)]
        number = emitter.mul(index, "%num_groups")
        start = emitter.at("%tiles", emitter.mul(number, str(TILE_BYTES)))
        with emitter.loop("0", "%num_groups") as group:
            tile = emitter.at(start, emitter.mul(group, str(TILE_BYTES)))
            _add_group(emitter, tile, group, totals)
        target = emitter.at("%output", emitter.mul(index, str(2 * COLUMNS)))
        for total in totals:
            store_bf16(emitter, total.get(), target)
            target = emitter.at(target, emitter.mul("%num_tiles", str(2 * COLUMNS)))
    return emitter.text()


def _add_group(emitter: Emitter, tile: str, group: str, totals: list[Variable]) -> None:
    num_rows = len(totals)
    rows = emitter.at("%scaled", emitter.mul(group, str(num_rows * _ROW_BYTES)))
    products = [emitter.variable(FLOATS, ZERO) for _ in range(num_rows)]
    with emitter.loop("0", str(CODE_BYTES), _VECTOR_BYTES) as offset:
        codes = emitter.load("<32 x i16>", emitter.at(tile, offset), align=64)
        # A vector has two elements of each place for all columns: 16 bytes of a row.
        elements = emitter.at(rows, emitter.op(f"lshr i64 {offset}, 2"))
        for place in range(CODES_PER_LANE):
            weights = _looked_up(emitter, codes, place)
            for row, product in enumerate(products):
                pair = splat_pair(emitter, emitter.at(elements, row * _ROW_BYTES + 4 * place))
                product.set(dot(emitter, product.get(), weights, pair))
    scales = load_fp16(emitter, emitter.at(tile, CODE_BYTES))
    minimums = load_fp16(emitter, emitter.at(tile, CODE_BYTES + 2 * COLUMNS))
    sums = emitter.at("%sums", emitter.mul(group, str(num_rows)), "float")
    for row, total in enumerate(totals):
        with_scale = fma(emitter, products[row].get(), scales, total.get())
        row_sum = splat(emitter, emitter.load("float", emitter.at(sums, row, "float"), align=4))
        total.set(fma(emitter, row_sum, minimums, with_scale))


def _looked_up(emitter: Emitter, codes: str, place: int) -> str:
    """The `place`-th code of every lane as bfloat16."""
    if place:
        codes = emitter.op(f"lshr <32 x i16> {codes}, splat (i16 {4 * place})")
    # The lookup heeds five bits of an index: the fifth is another code's, so all is there twice.
    table = ", ".join(f"bfloat {float(code)}" for code in [*range(16), *range(16)])
    bits = emitter.op(f"bitcast {PAIRS} <{table}> to <32 x i16>")
    found = emitter.call(
        "<32 x i16>",
        "llvm.x86.avx512.permvar.hi.512",
        f"<32 x i16> {bits}",
        f"<32 x i16> {codes}",
    )
    return emitter.op(f"bitcast <32 x i16> {found} to {PAIRS}")
