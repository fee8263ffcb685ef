"""Vectors of 16 floats, in the words of `emit`."""

from collections.abc import Sequence

from expediter.engine.kernels.emit import FLOATS, LANES, PAIRS, WORDS, Emitter, repeated

DECLARATIONS = f"""
declare {FLOATS} @llvm.fma.v16f32({FLOATS}, {FLOATS}, {FLOATS})
declare {FLOATS} @llvm.maxnum.v16f32({FLOATS}, {FLOATS})
declare {FLOATS} @llvm.floor.v16f32({FLOATS})
declare float @llvm.sqrt.f32(float)
declare float @llvm.vector.reduce.fadd.v16f32(float, {FLOATS})
declare float @llvm.vector.reduce.fmax.v16f32({FLOATS})
declare {FLOATS} @llvm.x86.avx512bf16.dpbf16ps.512({FLOATS}, {PAIRS}, {PAIRS})
declare <32 x i16> @llvm.x86.avx512.permvar.hi.512(<32 x i16>, <32 x i16>)
declare {FLOATS} @llvm.x86.avx512.mask.scalef.ps.512({FLOATS}, {FLOATS}, {FLOATS}, i16, i32)
"""

ZERO = "zeroinitializer"
_LOG2_E = 1.4426950408889634
_CURRENT_ROUNDING = 4


def binary(emitter: Emitter, operation: str, left: str, right: str) -> str:
    """`fadd`, `fsub`, `fmul` or `fdiv` of each lane."""
    return emitter.op(f"{operation} {FLOATS} {left}, {right}")


def fma(emitter: Emitter, left: str, right: str, addend: str) -> str:
    """Left times right plus addend, rounded once."""
    return emitter.call(
        FLOATS, "llvm.fma.v16f32", *(f"{FLOATS} {value}" for value in (left, right, addend))
    )


def dot(emitter: Emitter, total: str, left: str, right: str) -> str:
    """Lane i of total, plus the products of lanes 2i and 2i + 1 of two vectors of PAIRS."""
    return emitter.call(
        FLOATS,
        "llvm.x86.avx512bf16.dpbf16ps.512",
        f"{FLOATS} {total}",
        f"{PAIRS} {left}",
        f"{PAIRS} {right}",
    )


def maximum(emitter: Emitter, left: str, right: str) -> str:
    """The larger of each lane."""
    return emitter.call(FLOATS, "llvm.maxnum.v16f32", f"{FLOATS} {left}", f"{FLOATS} {right}")


def sum_of(emitter: Emitter, vector: str) -> str:
    """All lanes together, a float."""
    return emitter.op(
        f"call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {FLOATS} {vector})"
    )


def largest_of(emitter: Emitter, vector: str) -> str:
    """The largest lane, a float."""
    return emitter.call("float", "llvm.vector.reduce.fmax.v16f32", f"{FLOATS} {vector}")


def splat(emitter: Emitter, value: str, scalar: str = "float", lanes: int = LANES) -> str:
    """A vector with that value in every lane."""
    one = emitter.op(f"insertelement <{lanes} x {scalar}> poison, {scalar} {value}, i64 0")
    return emitter.op(
        f"shufflevector <{lanes} x {scalar}> {one}, <{lanes} x {scalar}> poison, "
        f"<{lanes} x i32> zeroinitializer"
    )


def splat_pair(emitter: Emitter, pointer: str) -> str:
    """The two bfloat16 at a pointer, in every pair of lanes."""
    words = splat(emitter, emitter.load("i32", pointer), "i32")
    return emitter.op(f"bitcast {WORDS} {words} to {PAIRS}")


def load_bf16(emitter: Emitter, pointer: str) -> str:
    """16 bfloat16 as floats."""
    halves = emitter.load("<16 x i16>", pointer)
    wide = emitter.op(f"zext <16 x i16> {halves} to {WORDS}")
    bits = emitter.op(f"shl {WORDS} {wide}, splat (i32 16)")
    return emitter.op(f"bitcast {WORDS} {bits} to {FLOATS}")


def store_bf16(emitter: Emitter, vector: str, pointer: str) -> None:
    """16 floats as bfloat16, rounded to nearest."""
    halves = emitter.op(f"fptrunc {FLOATS} {vector} to <16 x bfloat>")
    emitter.store("<16 x bfloat>", halves, pointer)


def load_fp16(emitter: Emitter, pointer: str) -> str:
    """16 float16 as floats."""
    halves = emitter.load("<16 x half>", pointer)
    return emitter.op(f"fpext <16 x half> {halves} to {FLOATS}")


def lane_sums(emitter: Emitter, vectors: Sequence[str]) -> str:
    """A vector whose lane i is the sum of all lanes of vector i, of 16."""
    # Each round adds halves of two vectors, so that one vector holds partial sums of both.
    width = LANES
    while len(vectors) > 1:
        width //= 2
        vectors = [
            _folded(emitter, left, right, width)
            for left, right in zip(
                vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :], strict=True
            )
        ]
    return vectors[0]


def _folded(emitter: Emitter, left: str, right: str, width: int) -> str:
    halves = []
    for offset in (0, width):
        lanes = [
            lane + offset + (LANES if side else 0)
            for start in range(0, LANES, 2 * width)
            for side in (0, 1)
            for lane in range(start, start + width)
        ]
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        halves.append(
            emitter.op(f"shufflevector {FLOATS} {left}, {FLOATS} {right}, <16 x i32> <{mask}>")
        )
    return binary(emitter, "fadd", *halves)


def exp(emitter: Emitter, vector: str) -> str:
    """e to the power of each lane, to about two units in the last place."""
    # 2^n times a polynomial (the Taylor series of 2^f) for f in [-1/2, 1/2].
    power = binary(emitter, "fmul", vector, repeated(_LOG2_E))
    rounded = binary(emitter, "fadd", power, repeated(0.5))
    whole = emitter.call(FLOATS, "llvm.floor.v16f32", f"{FLOATS} {rounded}")
    part = binary(emitter, "fsub", power, whole)
    result = repeated(_EXP2_SERIES[0])
    for factor in _EXP2_SERIES[1:]:
        result = fma(emitter, result, part, repeated(factor))
    return emitter.call(
        FLOATS,
        "llvm.x86.avx512.mask.scalef.ps.512",
        *(f"{FLOATS} {value}" for value in (result, whole, result)),
        "i16 -1",
        f"i32 {_CURRENT_ROUNDING}",
    )


def _series(num_terms: int) -> list[float]:
    factors = [1.0]
    for power in range(1, num_terms):
        factors.append(factors[-1] * 0.6931471805599453 / power)
    return factors[::-1]


_EXP2_SERIES = _series(8)
