"""Running the methods of a `.pte` with ExecuTorch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from voxtral_build.errors import PteError

# By ExecuTorch's ScalarType.
_DTYPES = {5: torch.float16, 6: torch.float32, 15: torch.bfloat16}


def register_kernels() -> None:
    """Import the kernels that programs of this project call: importing registers them."""
    import executorch.extension.llm.custom_ops.custom_ops
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401


def has_delegate(name: str) -> bool:
    """Whether the runtime in this process runs a backend's delegates."""
    register_kernels()
    from executorch.runtime import Runtime

    return bool(Runtime.get().backend_registry.is_available(name))


class Program:
    """A `.pte` whose methods keep their caches from call to call, each its own.

    It is ExecuTorch's `Module`, as in the C++ runner. The other way in,
    `executorch.runtime.Runtime`, gives all methods of a program one arena: a decoder's step
    then overwrites the encoder's caches.

    Args:
        path: the `.pte`.
        data: the `.ptd` in which it keeps data, where it does.
    """

    def __init__(self, path: Path, data: Path | None = None) -> None:
        register_kernels()
        from executorch.extension.pybindings.portable_lib import _load_for_executorch

        self.path = path
        self._module = _load_for_executorch(str(path), None if data is None else str(data))
        self.method_names: set[str] = set(self._module.method_names())

    def constant(self, name: str) -> int:
        """What a constant method returns.

        Raises:
            PteError: no such method.
        """
        if name not in self.method_names:
            raise PteError(
                f"{self.path} has no constant method {name}",
                got=", ".join(sorted(self.method_names)),
                next_step="build the artifact with this project",
            )
        (value,) = self._module.run_method(name, ())
        return int(value)

    def first_input(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the upper bounds of the sizes of a method's first input."""
        info = self._module.method_meta(name).input_tensor_meta(0)
        return _DTYPES[info.dtype()], tuple(info.sizes())

    def method(self, name: str) -> Callable[..., Tensor]:
        """The function that a method is: tensors in, a copy of its one output out.

        The runtime loads a method when it is first called.

        Raises:
            PteError: no such method; when called: it can't be loaded, or refuses its inputs.
        """
        if name not in self.method_names:
            raise PteError(
                f"{self.path} has no method {name}", got=name, allowed=sorted(self.method_names)
            )

        def call(*inputs: Tensor) -> Tensor:
            try:
                (output,) = self._module.run_method(name, inputs)
            except RuntimeError as error:
                shapes = ", ".join(f"{value.dtype} {list(value.shape)}" for value in inputs)
                raise PteError(
                    f"{self.path}: method {name} can't be run",
                    got=f"{error} on {shapes}",
                    next_step="the runtime's own lines above name a missing operator or backend",
                ) from error
            result: Tensor = output
            return result

        return call
