"""Triton kernels compiled for a GPU that is not there: launches compile, and nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

HOPPER = GPUTarget("cuda", 90, 32)


@contextmanager
def compiles_only(target: GPUTarget = HOPPER) -> Iterator[list[str]]:
    """Compile every kernel that is launched inside, for the types of its arguments; returns their
    names. Results stay as they were allocated.
    """
    names: list[str] = []

    def launch(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(kernel.arg_names, args, strict=False))
        given |= {name: options.pop(name) for name in kernel.arg_names if name in options}
        fixed = {p.name for p in kernel.params if p.is_constexpr}
        fixed |= {name for name, value in given.items() if value is None}
        signature = {
            name: "constexpr" if name in fixed else mangle_type(given[name])
            for name in kernel.arg_names
        }
        constants = {(kernel.arg_names.index(name),): given[name] for name in fixed}
        source = ASTSource(kernel, signature, constants)
        result = compiled(source, target=target, options=options)
        assert result.asm["cubin"]
        names.append(kernel.__name__)

    with mock.patch.object(JITFunction, "run", launch):
        yield names
