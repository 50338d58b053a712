"""What the columns of a table are for: by their names and types, or as the user says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import holds_ids, id_type, is_list, is_string
from headtail.data.tables.names import ORDERED_LISTS, TOKENS, Role, candidates, listed, plain
from headtail.data.tables.table import Table
from headtail.errors import HeadtailError, Setting, nearest

CHOSEN: tuple[Role, ...] = ("user", "item", "time", "rating", "session", "label", "text")
"""Roles that a user can give to a column, by the setting of the same name."""


@dataclass(frozen=True)
class Roles:
    """The column of each role, or None.

    Attributes:
        user: who interacts.
        item: what they interact with, one per row.
        time: when.
        rating: how much they liked it.
        session: which interactions belong together.
        label: what to predict; ids, or lists of ids.
        text: raw text.
        features: columns of numbers, or one column of lists of numbers.
        head: of a triple.
        relation: of a triple.
        tail: of a triple.
        lists: a column of lists of items.
        target: the item that comes after such a list.
        tokens: a column of lists of tokens.
    """

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    session: str | None = None
    label: str | None = None
    text: str | None = None
    features: tuple[str, ...] = ()
    head: str | None = None
    relation: str | None = None
    tail: str | None = None
    lists: str | None = None
    target: str | None = None
    tokens: str | None = None


def roles_of(table: Table, reading: Reading) -> Roles:
    """The roles of a table's columns."""
    kinds = {field.name: id_type(field.type) for field in table.schema}
    chosen = _chosen(table, reading)
    taken = {*chosen.values(), *reading.features}
    free = {name: kind for name, kind in kinds.items() if name not in taken}
    found = {
        role: chosen.get(role) or table.sources[0].guess.get(role) or _by_name(role, free)
        for role in (*CHOSEN, "head", "relation", "tail")
    }
    if all(name.isdigit() for name in kinds):
        found |= _by_format(reading.format, list(kinds), found)
    lists = _lists_of(free)
    if found["item"] is not None and is_list(kinds[found["item"]]):
        # A list of items: the next one may be in a column of its own.
        lists, found["item"] = found["item"], None
    elif _is_log(found, chosen, lists):
        lists = None
    target = _by_name("target", {n: kind for n, kind in free.items() if n != lists})
    if lists is not None and target is None and found["item"] is not None:
        target, found["item"] = found["item"], None  # RecBole: item_id_list, item_id
    tokens = next((name for name, kind in free.items() if _are_tokens(name, kind)), None)
    return Roles(
        **found,
        features=reading.features or _features_of(free, taken | set(found.values())),
        lists=lists,
        target=target,
        tokens=tokens,
    )


def _is_log(found: dict[str, str | None], chosen: dict[str, str], lists: str | None) -> bool:
    """Whether rows are interactions, and lists beside them, such as votes, are something else."""
    if "item" in chosen and ("time" in chosen or "user" in chosen):
        return True
    if lists is None or ORDERED_LISTS.fullmatch(plain(lists)):
        return False
    said = found["time"] or found["rating"]
    return found["item"] is not None and bool("item" in chosen or (found["user"] and said))


def _by_format(
    format_name: str, names: list[str], found: dict[str, str | None]
) -> dict[str, str | None]:
    """What columns without names are for in a format, unless it is known."""
    if format_name == "triples" and len(names) == 3:
        return dict(zip(("head", "relation", "tail"), names, strict=True))
    log = format_name in ("sequences", "interactions") and len(names) > 1
    if log and found["user"] is None and found["item"] is None:
        return {"user": names[0], "item": names[1]}
    return {}


def chosen_columns(reading: Reading) -> dict[str, Any]:
    """The columns that settings name, by their roles, as JSON."""
    settings = {role: getattr(reading, role) for role in CHOSEN}
    settings |= {"features": list(reading.features) or None}
    return {role: name for role, name in settings.items() if name is not None}


def _chosen(table: Table, reading: Reading) -> dict[str, str]:
    """The columns that settings name, other than features; all of them must be there."""
    chosen = chosen_columns(reading)
    features = chosen.pop("features", [])
    names = table.schema.names
    for setting, name in (*chosen.items(), *(("features", name) for name in features)):
        if name not in names:
            raise HeadtailError(
                Setting(setting),
                f" is `{name}`, but `{table.name}` has the columns {listed(names)}."
                f"{nearest(name, names)}",
            )
    return chosen


def _fits(role: Role, kind: pa.DataType) -> bool:
    """Whether a column of this type can have a role."""
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if role == "time":
        return number or types.is_temporal(kind) or is_string(kind)
    if role == "rating":
        return number
    if role == "text":
        return is_string(kind)
    if role == "label":
        inside = kind.value_type if is_list(kind) else kind
        return holds_ids(inside) or types.is_floating(kind) or types.is_boolean(kind)
    # A target may be missing everywhere.
    return holds_ids(kind) or number or (role == "target" and types.is_null(kind))


def _by_name(role: Role, kinds: dict[str, pa.DataType]) -> str | None:
    fitting = [name for name, kind in kinds.items() if _fits(role, kind)]
    return next(iter(candidates(role, fitting)), None)


def _holds_numbers(kind: pa.DataType) -> bool:
    return is_list(kind) and pa.types.is_floating(kind.value_type)


def _are_tokens(name: str, kind: pa.DataType) -> bool:
    return is_list(kind) and bool(TOKENS.fullmatch(plain(name)))


def _lists_of(kinds: dict[str, pa.DataType]) -> str | None:
    """The column of lists of items: `items` and the like, else the only one that is not of labels
    or tokens.
    """
    lists = [name for name, kind in kinds.items() if is_list(kind)]
    if "items" in lists:
        return "items"
    named = [name for name in lists if ORDERED_LISTS.fullmatch(plain(name))]
    if len(named) == 1:
        return named[0]
    others = [
        name
        for name in lists
        if holds_ids(kinds[name].value_type)
        and not TOKENS.fullmatch(plain(name))
        and not candidates("label", [name])
    ]
    return others[0] if len(others) == 1 else None


def _features_of(kinds: dict[str, pa.DataType], others: set[str | None]) -> tuple[str, ...]:
    """A column of lists of numbers, else all columns of numbers that are nothing else."""
    vectors = [name for name, kind in kinds.items() if _holds_numbers(kind)]
    if vectors:
        named = candidates("features", vectors)
        return (named[0],) if named else (vectors[0],) if len(vectors) == 1 else ()
    return tuple(
        name
        for name, kind in kinds.items()
        if (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        and name not in others
        and not plain(name).endswith("id")
        and plain(name) != "index"
    )
