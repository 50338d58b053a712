"""Samplers made of other samplers: `mixture`, `hard` and `resampled`."""

from __future__ import annotations

from collections.abc import Mapping

from headtail.errors import HeadtailError
from headtail.samplers import Hard, Mixture, Resampled, Sampler
from headtail.schemes.grammar import Call, check_known, read_call, text_of
from headtail.schemes.request import Request, SamplerRow

Rows = Mapping[str, SamplerRow]


def mixture(request: Request, rows: Rows) -> Sampler:
    """`mixture(part, part, …)`: m negatives, shared out evenly."""
    text = request.text
    args = request.call.args
    parts = [arg if isinstance(arg, Call) else read_call(str(arg), text) for arg in args]
    if not parts:
        raise HeadtailError(
            f"`{request.call.name}` in `{text}` needs parts, for example "
            f"`{request.call.name}(uniform,within-batch)`."
        )
    for part in parts:
        check_known(part.name, tuple(rows), "sampler", text)
    each, left = divmod(request.m, len(parts))
    shares = [each + (i < left) for i in range(len(parts))]
    write = f"resampled({16 * max(1, shares[0])},mixture(uniform,within-batch))"
    return Mixture(
        [
            _part(request.part(part, max(1, share)), rows, request.call.name, write)
            for part, share in zip(parts, shares, strict=True)
        ]
    )


def hard(request: Request, rows: Rows) -> Sampler:
    """`hard(k, sampler)`: the k nearest labels, and the rest from a cheap sampler."""
    default = min(request.m // 4, request.labels.num_labels) or 1
    nearest, cheap = _number_and_sampler(request, default, rows)
    if nearest >= request.m:
        raise HeadtailError(
            f"`{request.call.name}` in `{request.text}` takes {nearest} nearest labels of "
            f"{request.m} negatives. Leave some to the cheap sampler."
        )
    inner = request.part(cheap, request.m - nearest)
    return Hard(_part(inner, rows, request.call.name, "hard(uniform)"), nearest)


def resampled(request: Request, rows: Rows) -> Sampler:
    """`resampled(pool size, sampler)`: m negatives chosen from a pool."""
    name = request.call.name
    size, cheap = _number_and_sampler(request, 16 * request.m, rows)
    if size < request.m:
        raise HeadtailError(
            f"`{name}` in `{request.text}` draws {request.m} negatives from a pool of {size}. "
            f"Write a larger pool, for example `{name}({16 * request.m})`, or fewer negatives, "
            f"`@{size}` at most."
        )
    if not rows[cheap.name].knows_q:
        raise HeadtailError(
            f"`{name}` in `{request.text}` needs a pool with a known q. Take for example "
            f"`{name}({size})`."
        )
    return Resampled(rows[cheap.name].build(request.part(cheap, size)), request.m)


def _number_and_sampler(request: Request, default: int, rows: Rows) -> tuple[int, Call]:
    """The whole number and the sampler of `name(number, sampler)`; uniform, if none is named."""
    numbers = [arg for arg in request.call.args if isinstance(arg, float)]
    names = [arg for arg in request.call.args if not isinstance(arg, float)]
    if len(numbers) > 1 or any(number != int(number) or number < 1 for number in numbers):
        name = request.call.name
        raise HeadtailError(
            f"`{name}` in `{request.text}` takes one whole number of at least 1, for example "
            f"`{name}({default})`."
        )
    number = int(numbers[0]) if numbers else default
    if not names:
        return number, Call("uniform")
    return number, request.inner(names, tuple(rows), "sampler").call


def _part(request: Request, rows: Rows, whole: str, write: str) -> Sampler:
    """A sampler that is mixed with others: its q is known, and the same for every positive."""
    part = request.call
    if not rows[part.name].knows_q:
        raise HeadtailError(
            f"`{part.name}` in `{request.text}` does not know its q, which `{whole}` needs. Take "
            f"`{write}`."
        )
    sampler = rows[part.name].build(request)
    if sampler.claims.excludes_target:
        kept = [text_of(arg) for arg in part.args if arg != "excluded"]
        unmasked = [*kept, "masked"] if "excluded" not in part.args else kept
        write = f"{part.name}({','.join(unmasked)})" if unmasked else part.name
        raise HeadtailError(
            f"`{text_of(part)}` in `{request.text}` never draws the positive, and q then differs "
            f"from example to example. Write `{write}`."
        )
    return sampler
