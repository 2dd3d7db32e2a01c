"""Running the methods of a `.pte` with ExecuTorch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from voxtral_build.errors import PteError


class Program:
    """A loaded `.pte`; methods keep their caches from call to call."""

    def __init__(self, path: Path) -> None:
        # Importing registers the kernels that programs of this project call.
        import executorch.extension.llm.custom_ops.custom_ops
        import executorch.kernels.quantized  # noqa: F401
        from executorch.runtime import Runtime

        self.path = path
        # Kept: the runtime frees a program under its methods otherwise.
        self._program = Runtime.get().load_program(path)
        self.method_names: set[str] = set(self._program.method_names)

    def method(self, name: str) -> Callable[..., Tensor]:
        """Load a method; the function takes its input tensors and gives a copy of its output.

        Raises:
            PteError: no such method, or it can't be loaded here.
        """
        if name not in self.method_names:
            raise PteError(
                f"{self.path} has no method {name}", got=name, allowed=sorted(self.method_names)
            )
        method = self._program.load_method(name)
        if method is None:
            raise PteError(
                f"{self.path}: method {name} can't be loaded here",
                next_step="look for the missing operator or backend in the log above",
            )

        def call(*inputs: Tensor) -> Tensor:
            (output,) = method.execute(inputs)
            # The output lives in the method's arena, which its next call overwrites.
            result: Tensor = output.clone()
            return result

        return call
