"""Functions whose middle part runs on all of torch's threads.

Such a function `f` consists of `f.prepare` and `f.finish`, which the caller's thread runs
before and after, and of `f.work`, which every thread of the team runs with its number and
their number as two more arguments. It is the team that torch's own OpenMP has: another one would
fight it for the cores, because threads that wait for work do not leave theirs at once.
"""

from collections.abc import Sequence

from expediter.engine.kernels.emit import Emitter

TEAM = ("i64 %thread", "i64 %num_threads")
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
DECLARATIONS = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def region(
    name: str, parameters: Sequence[str], *, prepare: bool = False, finish: bool = False
) -> str:
    """The function that runs `name.prepare`, if wanted, `name.work` and `name.finish`."""
    caller = Emitter(name, parameters)
    passed = ", ".join(parameters)
    if prepare:
        caller.do(f"call void @{name}.prepare({passed})")
    room = caller.room(f"[{len(parameters)} x i64]")
    for index, parameter in enumerate(parameters):
        type_, value = parameter.split()
        caller.store(type_, value, caller.at(room, index, "i64"), align=8)
    # 0 threads: as many as torch.set_num_threads said.
    caller.do(f"call void @GOMP_parallel(ptr @{name}.member, ptr {room}, i32 0, i32 0)")
    if finish:
        caller.do(f"call void @{name}.finish({passed})")
    return "\n".join([caller.text(), _member(name, parameters)])


def _member(name: str, parameters: Sequence[str]) -> str:
    member = Emitter(f"{name}.member", ["ptr %room"], is_public=False)
    arguments = []
    for index, parameter in enumerate(parameters):
        type_ = parameter.split()[0]
        value = member.load(type_, member.at("%room", index, "i64"), align=8)
        arguments.append(f"{type_} {value}")
    for function in ("omp_get_thread_num", "omp_get_num_threads"):
        short = member.call("i32", function)
        arguments.append(f"i64 {member.op(f'zext i32 {short} to i64')}")
    member.do(f"call void @{name}.work({', '.join(arguments)})")
    return member.text()


def share(work: Emitter, count: str) -> tuple[str, str]:
    """First and end of this thread's part of `count` things."""
    first = work.op(f"sdiv i64 {work.mul(count, '%thread')}, %num_threads")
    after = work.mul(count, work.add("%thread", "1"))
    return first, work.op(f"sdiv i64 {after}, %num_threads")
