"""What the builder of one part of a scheme is given, and a row of the table that holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headtail.core.labels import Labels
from headtail.core.margins import Separable
from headtail.core.pieces import Piece
from headtail.core.weightings import FromMargin, Weighting
from headtail.errors import HeadtailError
from headtail.samplers import Sampler
from headtail.schemes.grammar import Arg, Call, check_known, read_call, text_of

DEFAULT_NEGATIVES = 256


@dataclass(frozen=True)
class Request:
    """A name with arguments, in the scheme it is part of.

    Attributes:
        call: the name and its arguments.
        labels: the label distribution.
        text: the whole scheme, for error messages.
        num_negatives: m as given, or None.
        weighting: of the scheme, for samplers that adapt to it.
        piece: the decoupled loss of the scheme; None for the softmax.
    """

    call: Call
    labels: Labels
    text: str
    num_negatives: int | None = None
    weighting: Weighting | None = None
    piece: Piece | None = None

    @property
    def m(self) -> int:
        """The number of negatives, 256 by default."""
        return DEFAULT_NEGATIVES if self.num_negatives is None else self.num_negatives

    def has(self, flag: str) -> bool:
        """Whether a word is among the arguments."""
        return flag in self.call.args

    def part(self, call: Call, num_negatives: int) -> Request:
        """The request for a sampler inside this one."""
        return replace(self, call=call, num_negatives=num_negatives)

    def number(self, default: float | None, flags: tuple[str, ...] = ()) -> float:
        """The number that a name with a default takes; every other argument is a flag."""
        args = self.call.args
        numbers = [arg for arg in args if isinstance(arg, float)]
        words = [text_of(arg) for arg in args if not isinstance(arg, float)]
        too_many = len(numbers) > (default is not None)
        if too_many or (words and not flags):
            arguments = ", ".join(map(str, numbers + words))
            raise HeadtailError(
                f"`{self.call.name}` in `{self.text}` takes {_takes(default, flags)}, but got "
                f"`{arguments}`."
            )
        for word in words:
            check_known(word, flags, "option", self.text)
        return numbers[0] if numbers else (default or 0.0)

    def inner(self, args: Sequence[Arg | Call], names: tuple[str, ...], kind: str) -> Request:
        """The request for the one name among the arguments."""
        if len(args) > 1 or isinstance(args[0], float):
            raise HeadtailError(
                f"`{self.call.name}` in `{self.text}` takes one {kind}, for example "
                f"`{self.call.name}({names[0]})`."
            )
        argument = args[0]
        call = argument if isinstance(argument, Call) else read_call(str(argument), self.text)
        check_known(call.name, names, kind, self.text)
        return replace(self, call=call)

    def separable_margin(self) -> Separable | None:
        """The margin of a softmax's weights, where they come from a separable one."""
        if self.piece is None and isinstance(self.weighting, FromMargin):
            margin = self.weighting.margin
            return margin if isinstance(margin, Separable) else None
        return None


def _takes(default: float | None, flags: tuple[str, ...]) -> str:
    if default is not None:
        return "at most one number"
    return "no number" if flags else "no arguments"


Source = Literal["labels", "batch", "past batches", "parts"]
"""Where negatives come from: all labels, this batch, earlier batches, or several samplers."""


@dataclass(frozen=True)
class SamplerRow:
    """A sampler as schemes know it.

    Attributes:
        kind: its class.
        build: from a request to the sampler.
        source: where its negatives come from.
        knows_q: whether it knows the q of any label, which weights that come from no margin need.
    """

    kind: type[Sampler]
    build: Callable[[Request], Sampler]
    source: Source = "labels"
    knows_q: bool = True
