"""A whole contest in small: real processes, a moment each."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest

from bench.contest import Contest
from bench.contestant import installed
from bench.cores import choose
from bench.install import Unavailable, debian, first_of, on_path
from bench.peers import PEERS, QUICK, Peer
from bench.plan import BenchPlan
from bench.report import write_report
from bench.samples import DIRECT, REFERENCE, Samples
from bench.versions import commit, version_of

pytestmark = pytest.mark.slow

PLAN = BenchPlan(
    rounds=2,
    streams=3,
    settle_s=0.05,
    window_s=0.2,
    first_tokens=2,
    saturated_streams=2,
    saturated_s=0.1,
    slow_streams=(2, 5),
    real_rounds=0,
)
FIGURES = {"cpu_us", "wait_us", "latency_p50_us", "latency_p99_us", "delivered", "saturated"}


def peer(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


@pytest.mark.anyio
async def test_a_contest_measures_all_gateways_and_names_those_that_cannot_start(tmp_path: Path) -> None:
    samples, cores = Samples(), choose()
    ours, naive = peer("slotgate"), peer("naive")
    reference = replace(ours, name=REFERENCE)
    program = installed(ours, tmp_path)
    programs = {reference: program, ours: program, naive: "/nowhere/python"}
    await Contest(PLAN, programs, samples, cores=cores, work=tmp_path).run()
    assert set(samples.values) == {DIRECT, REFERENCE, "slotgate"}
    for name in ("slotgate", REFERENCE):
        beside = samples.of(name, "reference_cpu_us")
        assert len(beside) == PLAN.rounds, "measured in every turn"
        assert not set(beside) & set(samples.of(name, "cpu_us")), "and for itself"
    assert set(samples.values["slotgate"]) > FIGURES
    assert {len(values) for values in samples.values[DIRECT].values()} == {2}
    assert 0.5 < samples.of("slotgate", "delivered")[0] < 1.5
    assert samples.of("slotgate", "stream_kib_5")
    assert "did not start" in samples.failures["naive"]

    versions = {"slotgate": version_of(ours, program)}
    report = write_report(samples, PLAN, cores, versions, tmp_path / "results")
    assert "missing: naive" in report
    assert f"slotgate: {version('slotgate')}; " in report
    [written] = (tmp_path / "results").glob("*.json")
    assert orjson.loads(written.read_bytes())["versions"] == versions
    assert {file.suffix for file in (tmp_path / "results").iterdir()} == {".json", ".md", ".svg"}


@pytest.mark.anyio
async def test_a_gateway_with_fewer_streams_has_no_ratio_to_the_reference(tmp_path: Path) -> None:
    samples, cores = Samples(), choose()
    ours = peer("slotgate")
    reference, part = replace(ours, name=REFERENCE), replace(ours, fraction=3)
    programs = dict.fromkeys((reference, part), installed(ours, tmp_path))
    plan = replace(PLAN, rounds=1, slow_streams=())
    await Contest(plan, programs, samples, cores=cores, work=tmp_path).run()
    assert samples.ratio_beside(REFERENCE, "cpu_us", "reference_cpu_us")
    assert samples.plain("slotgate", "cpu_us")
    assert samples.ratio_beside("slotgate", "cpu_us", "reference_cpu_us") is None


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("nginx version: nginx/1.22.1", "1.22.1"),
        ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/", "2.6.12-1+deb12u4"),
        ("envoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL", "1.40.0"),
        ("v2.11.7 h1:yj0Y4fYZGPkSvibBJ1sTWE33xC0fxztVyXEW5iIdUT4=", "2.11.7"),
        ("LiteLLM: Current Version = 1.108.7", "1.108.7"),
        ("nothing of the kind", ""),
    ],
)
def test_a_version_is_read_from_the_output_of_a_program(said: str, number: str) -> None:
    told = replace(peer("slotgate"), version=lambda program: [program, "-c", f"echo '{said}' >&2"])
    assert version_of(told, "/bin/sh") == number
    assert version_of(told, "/nowhere/program") == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_commit_is_known_in_a_clone(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    (tmp_path / "file").write_text("one")
    name = ["-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "file"], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    clean = commit(tmp_path)
    (tmp_path / "file").write_text("two")
    assert len(clean) >= 7
    assert commit(tmp_path) == f"{clean}-dirty"


def test_peers_have_different_names_and_the_quick_ones_are_among_them() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    assert set(QUICK) <= set(names)


def test_a_gateway_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    wanted = first_of(on_path("no-such-program"), debian("no-such-package", "no-such-program"))
    with pytest.raises(Unavailable, match=r"no no-such-program on the PATH; .*no-such-package"):
        wanted(tmp_path)
    assert first_of(on_path("no-such-program"), on_path("sh"))(tmp_path).endswith("/sh")
