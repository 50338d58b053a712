"""The shape of generated data, and the text that describes it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil

from headtail.data.catalogue import CATALOGUE
from headtail.errors import HeadtailError, nearest


@dataclass(frozen=True)
class Shape:
    """The size and statistics of generated data.

    Attributes:
        points: training points.
        test: test points.
        features: D, the number of words.
        labels: L.
        zipf: exponent s; the label of rank r occurs in proportion to $r^{-s}$, but at least once.
        labels_a_point: labels per point, on average.
        features_a_point: different words per point, on average.
        seed: of everything random.
        like: the data set of the catalogue with these numbers, or "".
        scale: factor on its points, features and labels.

    >>> shape = Shape.parse("synthetic:labels=500,points=2_000")
    >>> shape.labels, shape.zipf
    (500, 0.9)
    >>> shape.text
    'synthetic:points=2000,labels=500'
    """

    points: int = 12_000
    test: int = 3_000
    features: int = 3_000
    labels: int = 1_000
    zipf: float = 0.9
    labels_a_point: float = 3.0
    features_a_point: float = 20.0
    seed: int = 0
    like: str = ""
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read `synthetic[:NAME][,KEY=VALUE…]`.

        Numbers that are written out are not scaled.
        """
        kind, colon, rest = text.strip().partition(":")
        items = [item.strip() for item in rest.split(",")] if colon else []
        if kind != "synthetic" or "" in items:
            raise HeadtailError(
                f"`{text}` must read `synthetic`, or for example "
                f"`synthetic:{_NAMES[-1]},scale=0.01`."
            )
        like = items.pop(0) if items and "=" not in items[0] else ""
        settings = dict(_read(item, text) for item in items)
        if len(settings) < len(items):
            raise HeadtailError(f"`{text}` has a setting twice. Write each name once.")
        shape = replace(_like(like, settings.get("scale", 1.0), text), **settings)
        _check(shape, text)
        return shape

    @property
    def text(self) -> str:
        """The shortest text with the same meaning."""
        plain = _like(self.like, self.scale, self.like)
        items = [self.like] if self.like else []
        if self.scale != 1:
            items.append(f"scale={self.scale}")
        items += [
            f"{key}={getattr(self, name)}"
            for key, name in _KEYS.items()
            if getattr(self, name) != getattr(plain, name)
        ]
        return f"synthetic:{','.join(items)}" if items else "synthetic"


_KEYS = {
    field.name.replace("_", "-"): field.name for field in fields(Shape) if field.name != "like"
}


_NAMES = [known.name.lower() for known in CATALOGUE]


def _like(name: str, scale: float, text: str) -> Shape:
    """The shape of a known data set, or of none, at this scale."""
    known = next((known for known in CATALOGUE if known.name.lower() == name.lower()), None)
    if name and known is None:
        names = ", ".join(f"`{known}`" for known in _NAMES)
        raise HeadtailError(
            f"`{name}` in `{text}` is not a known data set. Known are "
            f"{names}.{nearest(name.lower(), _NAMES)}"
        )
    plain = Shape()
    if known is not None:
        sizes = known.num_train, known.num_test, known.num_features, known.num_labels
        plain = Shape(
            *sizes, known.zipf, known.labels_per_point, known.features_per_point, like=name.lower()
        )
    least = {
        "points": 200,
        "test": 50,
        "features": ceil(4 * plain.features_a_point),
        "labels": ceil(4 * plain.labels_a_point),
    }
    scaled = {
        key: max(min(low, getattr(plain, key)), round(scale * getattr(plain, key)))
        for key, low in least.items()
    }
    return replace(plain, scale=scale, **scaled)


def _read(item: str, text: str) -> tuple[str, int | float]:
    """A field of `Shape` and its value from `KEY=VALUE`."""
    key, _, value = (part.strip() for part in item.partition("="))
    if key not in _KEYS:
        keys = ", ".join(_KEYS)
        raise HeadtailError(
            f"`{key}` in `{text}` is not a setting of generated data. Settings are "
            f"{keys}.{nearest(key, _KEYS)}"
        )
    low, high, example = _BOUNDS[key]
    try:
        number = type(example)(value)
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        noun = "a whole number" if isinstance(example, int) else "a number"
        raise HeadtailError(
            f"`{item}` in `{text}` must be {noun} from {low:,} to {high:,}. Write for example "
            f"`{key}={example}`."
        )
    return _KEYS[key], number


_BOUNDS: dict[str, tuple[float, float, int | float]] = {
    "points": (1, 10**9, 20_000),
    "test": (1, 10**9, 4_000),
    "features": (4, 2**31 - 1, 2_000),
    "labels": (4, 10**9, 1_000),
    "zipf": (0, 3, 1.2),
    "labels-a-point": (1, 1_000, 3.0),
    "features-a-point": (1, 10_000, 20.0),
    "seed": (0, 2**63 - 1, 0),
    "scale": (1e-9, 1_000, 0.01),
}


def _check(shape: Shape, text: str) -> None:
    """Refuse numbers that do not fit together."""
    for what in ("labels", "features"):
        wanted = getattr(shape, f"{what}_a_point")
        held = getattr(shape, what)
        if 4 * wanted > held:
            more = f"Write `{what}={ceil(4 * wanted)}` or more"
            raise HeadtailError(
                f"`{text}` asks for {wanted:g} {what} per point out of {held:,}. {more}."
            )
    places = shape.points * shape.labels_a_point
    if 2 * shape.labels > places:
        enough = ceil(2 * shape.labels / shape.labels_a_point)
        raise HeadtailError(
            f"`{text}` has {places:,.0f} places for {shape.labels:,} labels, which must fit in "
            f"twice. Write `points={enough}` or more, or fewer labels."
        )
