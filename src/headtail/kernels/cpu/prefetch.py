"""A hint that a row of a table is read soon: rows of a large table are far apart, and each would
otherwise wait for memory by itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 4
"""How many rows ahead of use. Nearer ones come too late, farther ones were not faster."""


@intrinsic
def prefetch(_: Any, table: Any, row: Any) -> Any:  # pyright: ignore[reportInvalidTypeForm]
    """Begin to load `table[row]`; the processor continues to its end by itself."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        first = [args[1], context.get_constant(types.intp, 0)]
        address = cgutils.get_item_pointer(context, builder, kind, array, first)
        byte = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        )
        # to write, into the nearest cache, data
        builder.call(hint, [builder.bitcast(address, byte), number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(table, row), code
