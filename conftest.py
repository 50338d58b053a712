"""Shared set-up: one thread (tensors are small), fixed seeds, a cache of their own, and shapes
checked on request (`--shapes`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before numpy is loaded: its threads, and those of programs that tests start, would wait for each
# other wherever the cores are busy with other tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shapes", action="store_true", help="check every jaxtyping annotation while the tests run"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--shapes"):
        import tests.shapes  # noqa: F401 - the hook looks the checker up by name
        from jaxtyping import install_import_hook

        install_import_hook("headtail", "tests.shapes.check")
    if not os.environ.get("NUMBA_CACHE_DIR"):
        from headtail.files.cache_folder import cache_folder

        # Compiled kernels are kept where the user keeps them, or each run would compile them again.
        os.environ["NUMBA_CACHE_DIR"] = str(cache_folder() / "numba")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _doctests(doctest_namespace: dict[str, object]) -> None:
    import headtail

    doctest_namespace |= {name: getattr(headtail, name) for name in headtail.__all__} | {
        "torch": torch
    }


@pytest.fixture
def real_data() -> Path:
    """The folder with real data sets, where there is one."""
    folder = Path(
        os.environ.get("HEADTAIL_DATA") or Path(__file__).parent.parent / "shared" / "data"
    )
    if not folder.is_dir():
        pytest.skip(
            f"there are no data sets in {folder}; set HEADTAIL_DATA to the folder that holds them"
        )
    return folder
