"""A whole contest in small: real processes, a moment each."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.contest import Contest
from bench.contestant import installed
from bench.cores import choose
from bench.install import Unavailable, debian, first_of, on_path
from bench.peers import PEERS, QUICK, Peer
from bench.plan import Plan
from bench.report import write_report
from bench.samples import DIRECT, REFERENCE, Samples

PLAN = Plan(
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
async def test_a_contest_measures_everybody_and_names_who_cannot_start(tmp_path: Path) -> None:
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

    report = write_report(samples, PLAN, cores, tmp_path / "results")
    assert "missing: naive" in report
    assert {file.suffix for file in (tmp_path / "results").iterdir()} == {".json", ".md", ".svg"}


def test_peers_have_different_names_and_the_quick_ones_are_among_them() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    assert set(QUICK) <= set(names)


def test_what_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    wanted = first_of(on_path("no-such-program"), debian("no-such-package", "no-such-program"))
    with pytest.raises(Unavailable, match=r"no no-such-program on the PATH; .*no-such-package"):
        wanted(tmp_path)
    assert first_of(on_path("no-such-program"), on_path("sh"))(tmp_path).endswith("/sh")
