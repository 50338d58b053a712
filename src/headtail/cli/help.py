"""How commands and their options are shown in `--help`."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

NONE = "none"
"""How the help writes an empty value; users may write it too."""
WIDEST = 100
"""Columns of running text, however wide the terminal is."""
REGISTRY = ConstructorRegistry()


def description_of(command: type) -> str:
    """What a command does: its docstring, with lines as long as the terminal allows.

    They are indented, because tyro keeps the ends of such lines only.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    filled = (textwrap.fill(" ".join(each.split()), width - 2) for each in paragraphs)
    return textwrap.indent("\n".join(filled), "  ")


@REGISTRY.struct_rule
def documented(about: StructTypeInfo) -> StructConstructorSpec | None:
    """Options are the fields of a dataclass, each with its docstring as one paragraph; a default
    of None or False is not shown, because the docstring says what it means.
    """
    kind = about.type
    if not is_dataclass(kind):
        return None
    hints = get_type_hints(kind, include_extras=True)
    texts = _texts_of(kind)
    specs = []
    for field in fields(kind):
        default = getattr(about.default, field.name, _default_of(field))
        hint = hints[field.name]
        if default is None or default is False or default == ():
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="")]
        text = texts.get(field.name)
        specs.append(StructFieldSpec(field.name, hint, default, text))  # pyright: ignore[reportArgumentType] - annotated
    return StructConstructorSpec(kind, tuple(specs))


def _default_of(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return tyro.MISSING if field.default_factory is MISSING else field.default_factory()


def _texts_of(kind: type) -> dict[str, str]:
    """The docstring of each field, also of those that are inherited, without its line breaks."""
    texts = {}
    for each in reversed(kind.__mro__[:-1]):
        for text in docstring_parser.parse_from_object(each).params:
            texts[text.arg_name] = " ".join((text.description or "").split())
    return texts


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
