"""What is installed and what is shipped: every version is pinned, every file is meant."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def applies(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""})


def pulled_in() -> set[str]:
    """Every installed package that the extra `dev` brings, but those that another one pins."""
    own = PROJECT["project"]
    extras = own["optional-dependencies"]
    every = [line for name in ("dev", *extras) for line in extras[name]] + own["dependencies"]
    waiting = [Requirement(line) for line in every]
    waiting = [one for one in waiting if normal(one.name) != "headtail" and applies(one, set())]
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while waiting:
        needed = waiting.pop()
        name = normal(needed.name)
        if (name, str(sorted(needed.extras))) in seen:
            continue
        seen.add((name, str(sorted(needed.extras))))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        names.add(name)
        for line in package.requires or []:
            requirement = Requirement(line)
            exact = any(part.operator == "==" for part in requirement.specifier)
            if applies(requirement, needed.extras) and not exact:
                waiting.append(requirement)
    return names


def tracked(*paths: str) -> set[str]:
    """Files of the checkout, new ones too, but none that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        pytest.skip("this is not a checkout: what belongs to the package is unknown")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source archive, made offline."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist"]
    subprocess.run([*build, "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def test_everything_that_development_installs_is_pinned():
    assert sorted(pulled_in() - pinned().keys()) == []


def test_what_installs_and_what_builds_is_pinned_too():
    makers = {
        "pip",
        *(normal(Requirement(one).name) for one in PROJECT["build-system"]["requires"]),
    }
    assert makers <= pinned().keys()


def test_every_pin_is_one_version():
    versions = pinned().values()
    assert all(re.fullmatch(r"[0-9][\w.]*", version) for version in versions)


def test_every_install_of_the_makefile_uses_the_pins():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install .*", makefile)
    assert installs
    assert all("-c constraints.txt" in line for line in installs)
    # A package that is built is built in an environment of its own, which has its own option.
    building = [line for line in installs if "-e " in line]
    assert building
    assert all("--build-constraint constraints.txt" in line for line in building)


def test_hooks_before_a_commit_run_the_projects_own_tools():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert all(repository["repo"] == "local" for repository in hooks["repos"])
    commands = [hook["entry"] for repository in hooks["repos"] for hook in repository["hooks"]]
    assert all(command.startswith(".venv/bin/") for command in commands)


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        about = {PurePosixPath(name).name for name in wheel.namelist() if ".dist-info/" in name}
    expected = {name.removeprefix("src/") for name in tracked("src/headtail")}
    assert names == expected
    assert {"headtail/py.typed", "headtail/report/page.html"} <= names
    assert about == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


def test_the_wheel_says_what_it_is(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        folder = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        about = email.message_from_bytes(wheel.read(folder))
        commands = wheel.read(folder.replace("METADATA", "entry_points.txt")).decode()
    assert about["Name"] == "headtail"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == PROJECT["project"]["requires-python"]
    core = [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {Requirement(line).name for line in core} == {
        Requirement(line).name for line in PROJECT["project"]["dependencies"]
    }
    assert "headtail = headtail.__main__:main" in commands


def test_the_source_archive_holds_the_package_with_its_tests_and_nothing_else(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members)
    names = {member.name.partition("/")[2] for member in members}
    kept = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    expected = tracked(*(path.lstrip("/") for path in kept))
    assert names == expected | {"pyproject.toml", ".gitignore", "PKG-INFO"}
    assert "SECURITY.md" in names
