"""The names that columns have in the wild, by what they are for."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice
from typing import Literal, TypeAlias

MOST_LISTED = 20
"""Columns that an error names."""

Role: TypeAlias = Literal[
    "user",
    "item",
    "time",
    "rating",
    "session",
    "label",
    "text",
    "features",
    "head",
    "relation",
    "tail",
    "target",
]

_WORDS: dict[Role, str] = {
    "user": "user uid customer visitor reviewer member client person account buyer reader "
    "listener username author fullvisitor",
    "item": "item iid movie product asin track song artist sku isbn book business article news "
    "poi location venue video game anime ad page recipe place restaurant listing hotel app course "
    "parentasin stockcode content object document photo post",
    "time": "time timestamp ts date datetime unixreviewtime reviewtime eventtime eventdate created "
    "createdat unixtime utc day invoicedate purchasedate timeadded dateadded viewedat",
    "rating": "rating score stars overall preference grade",
    "session": "session sess visit basket sessionhash",
    "label": "label labels category categories class classes tag tags y intent intents topic "
    "topics finelabel target targets",
    "text": "text content query title sentence body document abstract description utterance "
    "question review reviewtext comment message input",
    "features": "features embedding embeddings vector feature x",
    "head": "head subject subj headentity h s",
    "relation": "relation predicate rel relationtype r p",
    "tail": "tail object obj tailentity t o",
    "target": "target nextitem",
}
ORDERED_LISTS = re.compile(
    r"(items?|products?|movies?|tracks?|songs?|asins?|clicks?|views?|articles?|events?)"
    r"(ids?)?(list|seq|sequence)?s?|sequences?|history|histories|session|basket"
)
"""Names of list columns that hold items in an order."""
TOKENS = re.compile(r"(input|token)ids|tokens|attentionmask|tokentypeids")
"""Names of list columns that hold the tokens of a text."""


def plain(name: str) -> str:
    """A name in small letters without what separates its words.

    >>> plain("user_id"), plain("unixReviewTime")
    ('userid', 'unixreviewtime')
    """
    return re.sub(r"[^0-9a-z]", "", name.lower())


def candidates(role: Role, names: list[str]) -> list[str]:
    """The columns with a name that fits a role, the most usual name first.

    >>> candidates("item", ["user_id", "product_id", "item_id"])
    ['item_id', 'product_id']
    """
    words = _WORDS[role].split()
    order = {f"{word}{end}": place for place, word in enumerate(words) for end in ("id", "")}
    fitting = [name for name in names if plain(name) in order]
    return sorted(fitting, key=lambda name: order[plain(name)])


def listed(names: Collection[str]) -> str:
    """The names of columns, for errors; of many, the first.

    >>> listed(["user", "item"]), listed([])
    ('`user`, `item`', 'no columns')
    """
    first = ", ".join(f"`{name}`" for name in islice(names, MOST_LISTED))
    more = len(names) - MOST_LISTED
    return f"{first} and {more:,} more" if more > 0 else first or "no columns"
