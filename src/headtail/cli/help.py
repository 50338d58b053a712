"""How options that may be left out look in `--help`."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NONE = "none"
"""What stands in the help for nothing, and may be written for it."""
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def optional(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`X | None` is shown as X: that an option may be left out goes without saying."""
    kinds = get_args(about.type)
    others = [one for one in kinds if one is not NoneType]
    if get_origin(about.type) not in (Union, UnionType) or len(others) != 1 or len(kinds) != 2:
        return None
    found = ConstructorRegistry.get_primitive_spec(
        PrimitiveTypeInfo.make(others[0], set(about.markers))
    )
    return _or_nothing(found, None) if isinstance(found, PrimitiveConstructorSpec) else None


@REGISTRY.primitive_rule
def several(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Of any number of words: where there are none by default, the help says so and leaves no gap."""
    if get_origin(about.type) is not tuple or get_args(about.type)[1:] != (...,):
        return None
    one = ConstructorRegistry.get_primitive_spec(
        PrimitiveTypeInfo.make(get_args(about.type)[0], set(about.markers))
    )
    if not isinstance(one, PrimitiveConstructorSpec):
        return None
    found = replace(
        one,
        nargs="*",
        metavar=f"[{one.metavar} …]",
        instance_from_str=lambda words: tuple(one.instance_from_str([word]) for word in words),
        str_from_instance=lambda values: [
            word for value in values for word in one.str_from_instance(value)
        ],
        is_instance=lambda value: isinstance(value, tuple) and all(map(one.is_instance, value)),
    )
    return _or_nothing(found, ())


def _or_nothing(
    found: PrimitiveConstructorSpec[Any], nothing: Any
) -> PrimitiveConstructorSpec[Any]:
    return replace(
        found,
        instance_from_str=lambda words: (
            nothing if words in ([], [NONE], ["None"]) else found.instance_from_str(words)
        ),
        str_from_instance=lambda value: (
            [NONE] if value == nothing else found.str_from_instance(value)
        ),
        is_instance=lambda value: value == nothing or found.is_instance(value),
    )
