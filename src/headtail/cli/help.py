"""How optional arguments are shown in `--help`."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NONE = "none"
"""How the help writes an empty value; users may write it too."""
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def optional(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Show `X | None` as X: any option may be left out."""
    kinds = get_args(about.type)
    others = [kind for kind in kinds if kind is not NoneType]
    if get_origin(about.type) not in (Union, UnionType) or len(others) != 1 or len(kinds) != 2:
        return None
    inner = _spec_of(others[0], about)
    return None if inner is None else _or_empty(inner, None)


@REGISTRY.primitive_rule
def several(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Any number of words; if the default is none, the help says so."""
    if get_origin(about.type) is not tuple or get_args(about.type)[1:] != (...,):
        return None
    item = _spec_of(get_args(about.type)[0], about)
    if item is None:
        return None
    words = replace(
        item,
        nargs="*",
        metavar=f"[{item.metavar} …]",
        instance_from_str=lambda words: tuple(item.instance_from_str([word]) for word in words),
        str_from_instance=lambda values: [
            word for value in values for word in item.str_from_instance(value)
        ],
        is_instance=lambda value: isinstance(value, tuple) and all(map(item.is_instance, value)),
    )
    return _or_empty(words, ())


def _spec_of(kind: Any, about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    info = PrimitiveTypeInfo.make(kind, set(about.markers))
    spec = ConstructorRegistry.get_primitive_spec(info)
    return spec if isinstance(spec, PrimitiveConstructorSpec) else None


def _or_empty(spec: PrimitiveConstructorSpec[Any], empty: Any) -> PrimitiveConstructorSpec[Any]:
    return replace(
        spec,
        instance_from_str=lambda words: (
            empty if words in ([], [NONE], ["None"]) else spec.instance_from_str(words)
        ),
        str_from_instance=lambda value: [NONE] if value == empty else spec.str_from_instance(value),
        is_instance=lambda value: value == empty or spec.is_instance(value),
    )
