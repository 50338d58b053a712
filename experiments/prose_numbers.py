"""Numbers in prose are what the rows say: fill them in, or check them.

    .venv/bin/python experiments/prose_numbers.py docs/results.md          # check
    .venv/bin/python experiments/prose_numbers.py --fill docs/results.md   # fill in

A number is tied to rows by a comment behind it, which readers of the page do not see:

    5.2<!-- =% retrieval.csv value dataset=delicious scheme=softmax metric=recall@10 slice=tail -->
    5.318<!-- = retrieval-tuning.csv implicit_loss dataset=diginetica scheme=softmax lr=0.02 -->
    **holds**<!-- =text evidence-claims.csv verdict dataset=diginetica … -->
    19<!-- =count retrieval.csv dataset=diginetica … -->

`=` is the mean of a column over all rows that match, `=%` that in percent, `=text` what all of them
have in that column, `=count` their number; `~` is a space in a name. Files are in
experiments/results. The number of decimals is that of the number on the page; `=+` and `=%+` show
the sign.

Prose is everything but code, comments, tables that a script places (`<!-- table NAME -->`), and
cells of other tables with few words. A page lists its numbers that no row decides, such as years,
in a comment `<!-- not from rows: 2006, 983 -->`; `UNTIED` says how many numbers a page has that are
neither. No page may have more, and new pages have none.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from headtail.errors import HeadtailError
from headtail.files.atomic import write_text

RESULTS = Path(__file__).parent / "results"
DIGITS = r"[-−+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
TIED = re.compile(
    rf"(?P<shown>{DIGITS}|\*\*[^*\n]+\*\*)"
    r"(?P<comment><!-- =(?P<kind>text|count|%?\+?) (?P<query>[^>]*?) -->)"
)
LISTED = re.compile(r"<!-- not from rows: (.*?)\s+-->", re.DOTALL)
NUMBER = re.compile(rf"(?<![\w.@/#^_=,]){DIGITS}(?![\w])")
APART = (
    re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE),
    re.compile(r"<!-- table .*? -->.*?<!-- end -->", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"`[^`\n]*`"),
    re.compile(r"\]\([^)\n]*\)"),
    re.compile(r"^ {4}\S.*$", re.MULTILINE),
)
"""What is not prose."""
WORDS = 7
"""Cells of tables with so many words are prose."""
UNTIED = {"README.md": 25}
"""Page: how many numbers of its prose are not tied to rows: those of speed are from benchmarks."""


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with every tied number as the rows have it."""
    return TIED.sub(lambda found: expected(found, results) + found["comment"], page)


def wrong(page: str, results: Path = RESULTS) -> list[str]:
    """Tied numbers that differ from the rows, each in a sentence."""
    found = []
    for tied in TIED.finditer(page):
        value = expected(tied, results)
        if value != tied["shown"]:
            line = page.count("\n", 0, tied.start()) + 1
            found.append(f"line {line}: {tied['shown']} should be {value} ({tied['query']})")
    return found


def expected(tied: re.Match[str], results: Path) -> str:
    """What the rows say, written as the page writes it."""
    name, *words = (word.replace("~", " ") for word in tied["query"].split(" "))
    lines = _read(results / name)
    kind = tied["kind"]
    column = "" if kind == "count" else words.pop(0)
    keys = dict(word.split("=", 1) for word in words)
    unknown = (set(keys) | {column or next(iter(lines[0]))}) - set(lines[0])
    if unknown:
        raise HeadtailError(f"`{name}` has no column {sorted(unknown)}, only {list(lines[0])}.")
    matching = [line for line in lines if keys.items() <= line.items()]
    if kind == "count":
        return f"{len(matching):,}"
    if not matching:
        raise HeadtailError(f"`{name}` has no row with {tied['query']}.")
    if kind == "text":
        words_found = {line[column] for line in matching}
        if len(words_found) > 1:
            raise HeadtailError(f"`{name}` has several values of {column}: {sorted(words_found)}.")
        return f"**{words_found.pop()}**"
    value = fmean(float(line[column]) for line in matching) * (100 if "%" in kind else 1)
    decimals = len(tied["shown"].partition(".")[2])
    value = round(value, decimals) + 0.0  # no negative zero
    return f"{value:{'+' if '+' in kind else ''},.{decimals}f}".replace("-", "−")


def untied(page: str) -> Counter[str]:
    """Numbers of the prose that are neither tied to rows nor listed as not from rows."""
    listed = Counter(
        number.strip() for found in LISTED.findall(page) for number in re.split(r",\s+", found)
    )
    prose = TIED.sub("", page)
    for apart in APART:
        prose = apart.sub("", prose)
    kept = [line if not line.startswith("|") else _prose_cells(line) for line in prose.split("\n")]
    return Counter(NUMBER.findall("\n".join(kept))) - listed


def _prose_cells(line: str) -> str:
    return "\n".join(cell for cell in line.split("|") if len(cell.split()) >= WORDS)


@lru_cache(maxsize=32)
def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise HeadtailError(f"There are no rows `{path.name}`.")
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise HeadtailError(f"`{path.name}` has no rows.")
    return lines


def main() -> int:
    """Check or fill the pages that are named."""
    words = sys.argv[1:]
    fill = "--fill" in words
    failed = 0
    for path in (Path(word) for word in words if word != "--fill"):
        page = path.read_text(encoding="utf-8")
        if fill:
            write_text(path, filled(page))
            continue
        problems = wrong(page)
        failed += len(problems)
        print("\n".join(f"{path}: {problem}" for problem in problems), end="")
        number = untied(page).total()
        print(f"{path}: {len(TIED.findall(page))} numbers are tied to rows, {number} are not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
