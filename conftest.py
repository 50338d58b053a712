"""Shared set-up: one thread (tensors are small), fixed seeds, and shapes checked on request (`pytest --shapes`)."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shapes", action="store_true", help="check every jaxtyping annotation while the tests run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--shapes"):
        import tests.shapes  # noqa: F401 - the hook looks the checker up by name
        from jaxtyping import install_import_hook

        install_import_hook("headtail", "tests.shapes.check")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _doctests(doctest_namespace: dict[str, object]) -> None:
    import headtail

    doctest_namespace |= {name: getattr(headtail, name) for name in headtail.__all__} | {"torch": torch}
