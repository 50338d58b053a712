"""Code in the README and the docs runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_the_code_on_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # some pages write files
    names: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


def test_the_readme_has_code():
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path):
    for link in re.findall(
        r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")
    ):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
