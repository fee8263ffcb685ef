"""From LLVM's text to functions that Python can call."""

import ctypes
from collections.abc import Callable

Function = Callable[..., None]

# Without them LLVM splits vectors of 64 bytes where it believes halves to be faster.
ATTRIBUTES = (
    'attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }'
)


class Library:
    """The functions of a source, for the processor this runs on; which lives as long as they."""

    def __init__(self, source: str) -> None:
        """Raises ImportError without llvmlite, RuntimeError if LLVM rejects the source."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            jit=True,
        )
        module = llvm.parse_assembly("\n".join([source, ATTRIBUTES]))
        module.verify()
        builder = llvm.create_pass_builder(
            machine, llvm.create_pipeline_tuning_options(speed_level=2)
        )
        builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def function(self, name: str, num_parameters: int, *, is_short: bool = False) -> Function:
        """A function of integers and addresses; a short one keeps Python's lock."""
        kind = ctypes.PYFUNCTYPE if is_short else ctypes.CFUNCTYPE
        address = self._engine.get_function_address(name)
        function = kind(None, *[ctypes.c_size_t] * num_parameters)(address)
        function.library = self  # type: ignore[attr-defined]
        return function
