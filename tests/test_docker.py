"""The files in docker/ agree with the project."""

from __future__ import annotations

import re

import pytest

from slotgate.gateway.settings import load
from tests.support.paths import ROOT

DOCKER = ROOT / "docker"


def test_the_configuration_that_compose_mounts_is_valid() -> None:
    settings = load(DOCKER / "slotgate.toml", {"LLAMA_KEY": "x"})
    assert [backend.name for backend in settings.backends] == ["llama"]


def test_compose_takes_every_right_from_the_gateway_that_it_does_not_need() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    gateway = text.partition("  gateway:\n")[2].partition("\n  llama:")[0]
    for line in ("read_only: true", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
        assert f"    {line}\n" in gateway


def test_everything_the_image_copies_is_there() -> None:
    lines = (DOCKER / "Dockerfile").read_text().split("\n")
    sources = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert sources
    assert [source for source in sources if not (DOCKER.parent / source).exists()] == []


@pytest.mark.parametrize("lock", ["serve", "local", "dev", "audit", "fuzz"])
def test_every_locked_package_has_a_hash(lock: str) -> None:
    text = (DOCKER / "lock" / f"{lock}.txt").read_text()
    packages = re.findall(r"^[a-z0-9_.-]+==.*(?:\n    --hash=.*)*", text, re.MULTILINE)
    assert packages
    assert [package for package in packages if "--hash=" not in package] == []
