"""Which reader a table goes to, by the roles of its columns; what fits two readings is refused."""

from __future__ import annotations

from headtail.data.readers.parquet_images import holds_images
from headtail.data.readers.sequence_examples import are_examples
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import is_list
from headtail.data.tables.columns import Columns, DataTables
from headtail.data.tables.names import ORDERED_LISTS, candidates, plain
from headtail.errors import HeadtailError, Setting


def format_of(tables: DataTables, reading: Reading) -> str:
    """Images, sequences, interactions, triples, raw text or dense."""
    first = tables.train
    if holds_images(first):
        return "images"
    roles = first.roles
    if reading.text is not None or reading.label is not None or reading.features:
        return "raw-text" if roles.text and not reading.features else "dense"
    if roles.lists:
        chosen = reading.user or reading.item or first.table.sources[0].guess
        if all(name.isdigit() for name in first.names) and not chosen:
            raise _without_names(first)
        if first.table.sources[0].guess and len(tables.parts) == 1:
            raise _lines_alone(first)
        return _of_lists(tables)
    if first.is_log:
        if tables.test is not None and not tables.test.is_log:
            return "interactions"
        # Lines of a user and an item are written in the order of time.
        lines = first.table.sources[0].guess and len(first.names) == 2
        ordered = roles.time or roles.session or lines
        return "sequences" if ordered else "interactions"
    if roles.head and roles.relation and roles.tail:
        return "triples"
    if roles.tokens and roles.label:
        raise _tokens(first)
    if roles.text and roles.label:
        return "raw-text"
    if roles.label and roles.features:
        return "dense"
    raise _unknown(first)


def used_options(tables: DataTables, format_name: str, reading: Reading) -> set[str]:
    """Options that do something to these tables, of those that not all data have a use for."""
    first = tables.train
    log = first.is_log and first.lists is None
    used = {
        "images": {"skip_bad_images"},
        "sequences": {"last", "item", "user"},
        "interactions": {"user", "item"},
        "raw-text": {"text", "label", "label_separator", "text_features", "max_terms", "ngrams"},
        "dense": {"label", "features"},
    }.get(format_name, set())
    if log and format_name in ("sequences", "interactions"):
        used |= {"time", "session", "rating", "min_rating"}
    if any(part.table.may_have_bad_lines for part in tables.parts.values()):
        used |= {"skip_bad_lines"}
    if tables.test is not None:
        return used
    if format_name in ("sequences", "interactions") or reading.split == "random":
        used |= {"split"}
    split = _default_split(first, format_name, log) if reading.split == "auto" else reading.split
    return used if split == "last" else used | {"holdout"}


def _default_split(columns: Columns, format_name: str, log: bool) -> str:
    """Whether the last item of each sequence is tested, or a share."""
    if format_name != "sequences":
        return "a share"
    by_order = columns.roles.time or columns.roles.session if log else are_examples(columns)
    return "a share" if by_order else "last"


def _of_lists(tables: DataTables) -> str:
    first = tables.train
    roles = first.roles
    other_reading = roles.text or roles.label not in (None, roles.target)
    if other_reading and not ORDERED_LISTS.fullmatch(plain(roles.lists or "")):
        raise _tokens(first)
    second = first if tables.test is None else tables.test
    if second.lists:
        targets = first.target or second.target
        same_users = tables.test is not None and first.user and second.user and not targets
        return "interactions" if same_users else "sequences"
    if not (second.user and second.item):
        raise _unknown(second)
    return "interactions"


def _tokens(columns: Columns) -> HeadtailError:
    roles = columns.roles
    lists = roles.lists or roles.tokens or ""
    other = roles.label or roles.text
    return HeadtailError(
        f"`{columns.path}` has the lists `{lists}` beside `{other}`, which fits two readings: "
        f"`{lists}` may be sequences of items in their order (",
        Setting("format", "sequences"),
        " with ",
        Setting("item", lists),
        f"), or the features of a point with the label `{other}`, which must then be raw text in a "
        "column of its own (",
        Setting("text"),
        "), or numbers (",
        Setting("features"),
        ").",
    )


def _unknown(columns: Columns) -> HeadtailError:
    if all(name.isdigit() for name in columns.names):
        return _without_names(columns)
    for role in ("user", "item"):
        named = candidates(role, list(columns.names))
        if named and getattr(columns.roles, role) is None:
            return HeadtailError(
                f"`{columns.path}`, column `{named[0]}` holds {columns.kind(named[0])}, but ids of "
                f"{role}s must be whole numbers or strings. Cast the column first."
            )
    return HeadtailError(
        f"`{columns.path}` has the columns {columns.listed}, and it is not clear what they are "
        "for. Name the columns of a log with ",
        Setting("user"),
        ", ",
        Setting("item"),
        " and ",
        Setting("time"),
        ", those of labelled points with ",
        Setting("label"),
        " and ",
        Setting("text"),
        " or ",
        Setting("features"),
        "; or write sequences as a list column `items`, triples as `head`, `relation` and `tail`, "
        "images as `image` and `label`.",
    )


def _lines_alone(columns: Columns) -> HeadtailError:
    return HeadtailError(
        f"`{columns.path}` fits two readings: each line may be a user and its items in the order "
        "of time, and the last item is tested (",
        Setting("format", "sequences"),
        "), or a user and its items in no particular order, and some of them are tested (",
        Setting("format", "interactions"),
        ").",
    )


def _without_names(columns: Columns) -> HeadtailError:
    number = len(columns.names)
    source = columns.table.sources[0]
    if is_list(columns.kind(columns.names[-1])):
        return HeadtailError(
            f"`{source.name}` fits two readings: each line may be a user and its items (",
            Setting("format", "interactions"),
            "), or a sequence of items (",
            Setting("format", "sequences"),
            ").",
        )
    triples = (
        (", or a head, a relation and a tail (", Setting("format", "triples"), ")")
        if number == 3
        else ()
    )
    others = (", and ", Setting("time", "3"), " or ", Setting("rating", "3")) if number > 2 else ()
    return HeadtailError(
        f"`{source.name}` has {number} columns without names, which fit more than one reading: a "
        "user, an item and what else there is (",
        Setting("user", "1"),
        ", ",
        Setting("item", "2"),
        *others,
        ")",
        *triples,
        ", or a label and a text (",
        Setting("label", "1"),
        ", ",
        Setting("text", "2"),
        "). Choose one, or name the columns in the first line.",
    )
