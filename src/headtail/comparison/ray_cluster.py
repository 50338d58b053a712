"""Ray's cluster: the one that Ray's own environment names, or a private one on this machine."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import torch

from headtail.device.shared_gpu import shared_gpu
from headtail.errors import HeadtailError, Setting, need

ADDRESS = "RAY_ADDRESS"
ACCESS = "RAY_AUTH_MODE"
OWN = "local"
"""The address of a cluster that Ray starts for this process alone."""
SECONDS = 10.0
"""How long an address may take to answer; Ray itself would try for minutes."""
LONGEST_FOLDER = 20
"""Characters of a folder for temporary files: Ray's sockets lie deep in it, and the path of a
socket has at most 107.
"""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray listens on the loopback interface alone where this is 0, and on all interfaces otherwise."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


def ray_package(module: str = "ray") -> ModuleType:
    """A module of Ray; where it is missing, one sentence says how to install it."""
    return need("ray", extra="ray", to="The engine `ray`", module=module)


def check_ray() -> None:
    """Refuse to begin where Ray is missing, or where no cluster answers."""
    if not ray_package().is_initialized():
        _check_address(_address())


@contextmanager
def cluster(workers: int | None, device: str, note: Callable[[str], None]) -> Iterator[ModuleType]:
    """Ray, connected to a cluster: that of the caller if there is one, or the one that the
    environment variable `RAY_ADDRESS` names, or a private one.

    A private cluster listens on the loopback interface alone, asks for a token that only it knows,
    collects no statistics and has no dashboard. It ends with the block, or with this process.

    Args:
        workers: tasks at the same time; None: one per thread of torch.
        device: "cpu" or "cuda".
        note: called with a sentence if tasks cannot share a GPU.
    """
    ray = ray_package()
    if ray.is_initialized():
        yield ray
        return
    address = _address()
    _check_address(address)
    with ExitStack() as resources:
        if address == OWN and device == "cuda" and (workers or 1) > 1:
            resources.enter_context(shared_gpu(note))
        if address == OWN:
            folder = resources.enter_context(_private_folder())
            resources.enter_context(_own_access(ray))
            resources.callback(ray.shutdown)
            _start(ray, workers or torch.get_num_threads(), folder)
        else:
            resources.callback(ray.shutdown)
            _connect(ray, address)
        yield ray


def gpus_per_task(ray: ModuleType, workers: int | None, device: str) -> float:
    """The share of a GPU that each task takes, so that `workers` of them fit."""
    if device != "cuda":
        return 0
    gpus = ray.cluster_resources().get("GPU", 0)
    if not gpus:
        raise HeadtailError("Ray's cluster has no GPU. Write ", Setting("device", "cpu"), ".")
    tasks = math.ceil((workers or 1) / gpus)
    return math.floor(10_000 / tasks) / 10_000  # Ray counts in these


def is_own() -> bool:
    """Whether the cluster that `cluster` starts here inherits the environment of this process."""
    return not ray_package().is_initialized() and _address() == OWN


def _address() -> str:
    return os.environ.get(ADDRESS) or OWN


def _check_address(address: str) -> None:
    """Refuse an address at which nothing listens."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if address in (OWN, "auto"):
        return
    try:
        host, port = parts.hostname, parts.port
        if host is None or port is None:
            raise ValueError("it is not written as `host:port`")
        socket.create_connection((host, port), SECONDS).close()
    except (OSError, ValueError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _unreachable(address: str, why: str) -> HeadtailError:
    return HeadtailError(
        f"No Ray cluster answers at `{address}`, which the environment variable {ADDRESS} names "
        f"({_first_sentence(why)}). Start it there, or unset {ADDRESS} to use this machine alone."
    )


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _connect(ray: ModuleType, address: str) -> None:
    try:
        ray.init(address=address, **QUIET)
    except Exception as error:
        raise _unreachable(address, str(error) or type(error).__name__) from error


def _start(ray: ModuleType, workers: int, folder: Path) -> None:
    private = {
        LOOPBACK: "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a change to come
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        private["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or _token()
    # The variable is for the processes that start; this one has read it long ago.
    constants: Any = ray_package("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment(private):
            ray.init(OWN, num_cpus=workers, include_dashboard=False, _temp_dir=str(folder), **QUIET)
    except Exception as error:
        why = _first_sentence(str(error) or type(error).__name__)
        raise HeadtailError(
            f"Ray could not start on this machine ({why}). Leave out ", Setting("engine"), "."
        ) from error
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@cache
def _token() -> str:
    return secrets.token_hex(32)


@contextmanager
def _own_access(ray: ModuleType) -> Iterator[None]:
    """Let Ray choose how a cluster lets processes in, and look for a token, for this block alone.

    Otherwise it keeps the first choice, and the first token, for as long as the process runs.
    """
    tokens = ray._raylet.AuthenticationTokenLoader.instance()
    before = os.environ.get(ACCESS)
    tokens.reset_cache()
    try:
        yield
    finally:
        _restore({ACCESS: before})
        ray._raylet.Config.initialize("")  # read the environment again
        tokens.reset_cache()


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for Ray's sockets and logs that no other user can enter.

    Ray opens its own folder to everyone, so that is one inside it.
    """
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= LONGEST_FOLDER else "/tmp"
    outer = Path(tempfile.mkdtemp(prefix="headtail-ray-", dir=place))
    try:
        yield outer / "r"
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These environment variables, for the processes that start in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
