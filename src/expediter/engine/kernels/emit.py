"""Writes LLVM functions, instruction by instruction.

A value is its name in LLVM's text, a constant is its text. Loops are Python's `with`, and what
must survive from round to round is a `Variable`; LLVM turns those into registers.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

LANES = 16  # float32 in a vector
FLOATS = f"<{LANES} x float>"
PAIRS = f"<{2 * LANES} x bfloat>"
WORDS = f"<{LANES} x i32>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A place on the stack that is read and written as a whole."""

    emitter: "Emitter"
    type: str
    place: str

    def get(self) -> str:
        """Its value at this point of the function."""
        return self.emitter.op(f"load {self.type}, ptr {self.place}")

    def set(self, value: str) -> None:
        """From here on it is `value`."""
        self.emitter.do(f"store {self.type} {value}, ptr {self.place}")


class Emitter:
    """One function that returns nothing; `parameters` are like "ptr %rows" and "i64 %count"."""

    def __init__(self, name: str, parameters: Sequence[str], *, is_public: bool = True) -> None:
        linkage = "" if is_public else "internal "
        self._head = f"define {linkage}void @{name}({', '.join(parameters)}) #0 {{"
        self._entry: list[str] = []
        self._body: list[str] = []
        self._serial = 0

    def text(self) -> str:
        """The function in LLVM's language."""
        lines = [self._head, "entry:", *self._entry, "br label %begin", "begin:", *self._body]
        return "\n".join([*lines, "ret void", "}"])

    def do(self, instruction: str) -> None:
        """An instruction without a value."""
        self._body.append(instruction)

    def op(self, instruction: str) -> str:
        """An instruction's value."""
        name = self._name("%v")
        self._body.append(f"{name} = {instruction}")
        return name

    def variable(self, type_: str, initial: str) -> Variable:
        """A variable that is `initial` from here on."""
        place = self.room(type_)
        variable = Variable(emitter=self, type=type_, place=place)
        variable.set(initial)
        return variable

    def room(self, type_: str) -> str:
        """Room for a value on the stack, as a pointer."""
        place = self._name("%place")
        self._entry.append(f"{place} = alloca {type_}, align 64")
        return place

    @contextmanager
    def loop(self, start: str, stop: str, step: int = 1) -> Iterator[str]:
        """What is emitted inside runs for start, start + step, ... below stop."""
        head, body, end = (self._name(part) for part in ("head", "body", "end"))
        counter = self.variable("i64", start)
        self._label(head)
        index = counter.get()
        inside = self.op(f"icmp slt i64 {index}, {stop}")
        self.do(f"br i1 {inside}, label %{body}, label %{end}")
        self._body.append(f"{body}:")
        yield index
        counter.set(self.add(index, str(step)))
        self._label(head, is_new=False)
        self._body.append(f"{end}:")

    @contextmanager
    def claimed(self, counter: str, stop: str) -> Iterator[str]:
        """What is emitted inside runs for numbers that no other thread gets, all below stop."""
        head, body, end = (self._name(part) for part in ("head", "body", "end"))
        self._label(head)
        index = self.op(f"atomicrmw add ptr {counter}, i64 1 monotonic")
        inside = self.op(f"icmp slt i64 {index}, {stop}")
        self.do(f"br i1 {inside}, label %{body}, label %{end}")
        self._body.append(f"{body}:")
        yield index
        self._label(head, is_new=False)
        self._body.append(f"{end}:")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is emitted inside runs if `condition` holds."""
        yes, end = self._name("yes"), self._name("end")
        self.do(f"br i1 {condition}, label %{yes}, label %{end}")
        self._body.append(f"{yes}:")
        yield
        self._label(end)

    def split(self, value: str, divisor: str) -> tuple[str, str]:
        """Quotient and remainder, nothing being negative."""
        quotient = self.op(f"udiv i64 {value}, {divisor}")
        return quotient, self.op(f"urem i64 {value}, {divisor}")

    def smaller(self, left: str, right: str) -> str:
        """The smaller integer."""
        is_left = self.op(f"icmp slt i64 {left}, {right}")
        return self.op(f"select i1 {is_left}, i64 {left}, i64 {right}")

    def add(self, left: str, right: str) -> str:
        """Left plus right, integers."""
        return self.op(f"add nsw i64 {left}, {right}")

    def mul(self, left: str, right: str) -> str:
        """Left times right, integers."""
        return self.op(f"mul nsw i64 {left}, {right}")

    def at(self, pointer: str, index: str | int, type_: str = "i8") -> str:
        """Where element `index` of an array of `type_` is."""
        return self.op(f"getelementptr inbounds {type_}, ptr {pointer}, i64 {index}")

    def load(self, type_: str, pointer: str, *, align: int = 2) -> str:
        """What is stored there."""
        return self.op(f"load {type_}, ptr {pointer}, align {align}")

    def store(self, type_: str, value: str, pointer: str, *, align: int = 2) -> None:
        """Store it there."""
        self.do(f"store {type_} {value}, ptr {pointer}, align {align}")

    def call(self, type_: str, function: str, *arguments: str) -> str:
        """The value of a function; arguments have their types before them."""
        return self.op(f"call {type_} @{function}({', '.join(arguments)})")

    def _label(self, name: str, *, is_new: bool = True) -> None:
        self._body.append(f"br label %{name}")
        if is_new:
            self._body.append(f"{name}:")

    def _name(self, stem: str) -> str:
        self._serial += 1
        return f"{stem}{self._serial}"


def number(value: float) -> str:
    """A float constant; LLVM wants the bits of the double that equals it."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def repeated(value: float) -> str:
    """A constant of type FLOATS with that number in every lane."""
    return f"splat (float {number(value)})"
