"""The usage records of a gateway: their content, and how they survive crashes, stops and locked stores."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.cli import main
from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage import UsageQuery, open_ledger, store_of
from tests.support.answer import fetch
from tests.support.client import read_stream
from tests.support.gateway import CHAT, ask, chat, data_of, text_of
from tests.support.notation import DONE, END, STOP, USE, H, T, chunked
from tests.support.script import Fin, Gate, Script, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream
from tests.support.served import Served, backend_table, served_gateway
from tests.support.usage import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPERATOR = b"authorization: Bearer sg-operator"
KEY = b"authorization: Bearer sg-a"
ANSWER = stream(T("a"), T("b"), STOP, USE, DONE)
SERVER = f'[server]\noperator_key_hashes = ["{hash_key("sg-operator")}"]\n'
KEY_NAME = f"sha256:{hash_key('sg-a')[:8]}"
TENANT = f'[[tenant]]\nname = "a"\nkey_hashes = ["{hash_key("sg-a")}"]\n'
OTHER = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
connection.execute("COMMIT")
"""


def configuration(fu: ScriptedUpstream, usage: str = "") -> str:
    return SERVER + TENANT + backend_table(fu.url) + usage


def records(file: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM slotgate_usage ORDER BY time, number")]


async def totals(served: Served, query: str = "", status: int = 200) -> dict[str, Any]:
    answer = await fetch(served.url, "GET", f"/admin/usage{query}", OPERATOR)
    assert answer.status == status, answer
    return answer.json


def files(folder: Path) -> list[Path]:
    """Return the files of the database: SQLite keeps up to three."""
    return list(folder.glob("*.db*"))


async def streams(served: Served, count: int) -> None:
    for number in range(count):
        frames = await read_stream(served.url, CHAT, chat(), [KEY, b"x-request-id: r%d" % number])
        assert text_of(frames) == "ab"


async def test_a_record_says_what_a_request_was_and_what_it_cost(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        before = datetime.now(UTC)
        await read_stream(served.url, "/chat/completions", chat(), [KEY, b"x-request-id: mine"])
        [total] = (await totals(served))["usage"]
    [kept] = records(tmp_path / "slotgate.db")
    assert before.isoformat()[:19] <= kept["time"] <= datetime.now(UTC).isoformat()
    assert kept["day"] == kept["time"][:10]
    assert kept["queue_ms"] >= 0
    assert 0 < kept["ttft_ms"] <= kept["duration_ms"]
    known = {name: kept[name] for name in kept if not name.endswith("_ms")}
    for name in ("time", "day", "writer"):
        del known[name]
    assert known == {
        "number": 1,
        "request_id": "mine",
        "tenant": "a",
        "key": KEY_NAME,
        "model": "m",
        "backend": "gpu0",
        "path": CHAT,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 2,
        "reasoning_tokens": 0,
        "partial": 0,
        "estimated": 0,
        "status": 200,
        "outcome": "ok",
        "code": None,
    }
    assert (total["tenant"], total["model"], total["day"]) == ("a", "m", kept["day"])
    assert (total["requests"], total["prompt_tokens"], total["completion_tokens"]) == (1, 3, 2)


async def test_every_ending_leaves_one_record_and_a_request_without_a_slot_none(tmp_path: Path) -> None:
    broken: Script = [Write(H + chunked(T("a"), T("b"))), Fin()]
    left: Script = [Write(H + chunked(T("a"), T("b"), T("c"))), Stall()]
    scripts = iter([ANSWER, broken, left, [Fin()]])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        await read_stream(served.url, CHAT, chat(), [KEY])
        await read_stream(served.url, CHAT, chat(), [KEY])
        async with await served.client() as client:
            await client.post(CHAT, chat(), KEY)
            frames = client.frames()
            while b'"c"' not in (await anext(frames)).data:
                pass
        await served.says('"outcome": "client_gone"', within=10)
        assert (await ask(served.url, KEY, stream=False)).status == 502
        assert (await ask(served.url, KEY, model="unknown")).status == 404
        assert (await ask(served.url)).status == 401
        report = await totals(served, "?group=outcome")
    kept = records(tmp_path / "slotgate.db")
    told = [(k["outcome"], k["status"], k["completion_tokens"], k["partial"]) for k in kept]
    assert told[:3] == [("ok", 200, 2, 0), ("error", 200, 2, 1), ("client_gone", 499, 3, 1)]
    assert [(k["outcome"], k["status"]) for k in kept[3:]] == [("error", 502)]
    assert {row["outcome"]: (row["requests"], row["errors"]) for row in report["usage"]} == {
        "ok": (1, 0),
        "error": (2, 2),
        "client_gone": (1, 0),
    }
    assert report["current"]
    assert report["complete"]


async def test_the_usage_is_the_operators_and_nonsense_is_400(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        assert (await fetch(served.url, "GET", "/admin/usage", KEY)).status == 401
        for query in (
            "?group=nothing",
            "?group=tenant,tenant",
            "?from=yesterday",
            "?from=2027-01-02&to=2027-01-01",
            "?form=csv",
            "?from=2027-01-01&from=2027-01-02",
            "?group=%ff",
            "?to=2027-01-01'%3B--",
        ):
            assert (await totals(served, query, 400))["error"]["code"] == "invalid_request"
        assert (await totals(served, "?group="))["usage"][0]["requests"] == 0
        assert (await totals(served, "?from=2020-01-01&to=2020-01-02"))["usage"] == []


async def test_without_a_store_nothing_is_kept(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu, '[usage]\nstore = "none"\n')) as served:
        await streams(served, 1)
        assert (await totals(served, status=404))["error"]["code"] == "usage_not_recorded"
    assert files(tmp_path) == []


async def test_sigterm_loses_nothing(tmp_path: Path) -> None:
    """Requests that the shutdown ends are recorded too."""
    gate = Gate()
    running: Script = [Write(H + chunked(T("a"))), gate, Write(END), Fin()]
    scripts = iter([*[ANSWER] * 40, running])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with (
        fu,
        served_gateway(
            tmp_path, "[server]\nshutdown_grace_s = 0.1\n" + TENANT + backend_table(fu.url)
        ) as served,
    ):
        await streams(served, 40)
        async with await served.client() as client:
            await client.post(CHAT, chat(), KEY, b"x-request-id: cut")
            await anext(client.frames())
            assert await served.stop() == 0
    kept = records(tmp_path / "slotgate.db")
    assert [k["request_id"] for k in kept] == [*(f"r{number}" for number in range(40)), "cut"]
    assert (kept[-1]["outcome"], kept[-1]["code"], kept[-1]["partial"]) == ("error", "draining", 1)
    assert served.complaints() == []


async def test_sigkill_loses_no_record_that_is_older_than_a_batch(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        await streams(served, 20)
        async with asyncio.timeout(10):  # records are written twice a second, without a query too
            while not (tmp_path / "slotgate.db").exists() or len(records(tmp_path / "slotgate.db")) < 20:
                await asyncio.sleep(0.05)
        await streams(served, 5)
        served.process.send_signal(signal.SIGKILL)
        await served.exit_code()
    kept = [k["request_id"] for k in records(tmp_path / "slotgate.db")]
    assert kept[:20] == [f"r{number}" for number in range(20)]
    assert len(kept) <= 25


async def test_scenario_107_a_locked_database_delays_no_stream_and_gets_its_records_later(
    tmp_path: Path,
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        await streams(served, 1)
        assert (await totals(served))["current"]
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OTHER, str(tmp_path / "slotgate.db")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdout is not None
        assert await other.stdout.readline() == b"locked\n"
        await streams(served, 30)
        await served.says("usage cannot be written", within=15)
        during = await totals(served, "?group=")
        assert (during["usage"][0]["requests"], during["current"]) == (1, False)
        await streams(served, 30)
        await other.communicate(b"")
        await served.says("usage can be written again", within=30)
        after = await totals(served, "?group=")
        assert (after["usage"][0]["requests"], after["current"]) == (61, True)
    assert len(records(tmp_path / "slotgate.db")) == 61


async def test_a_lock_that_stays_does_not_hold_up_the_end_for_ever_and_the_loss_is_said(
    tmp_path: Path,
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        with closing(sqlite3.connect(tmp_path / "slotgate.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await streams(served, 3)
            assert await served.stop(within=20) == 0
        assert '"at_the_end": 3' in served.log.read_text()


async def test_a_database_that_is_deleted_is_made_anew(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        await streams(served, 1)
        await totals(served)
        for part in files(tmp_path):
            part.unlink()
        await streams(served, 2)
        assert (await totals(served, "?group="))["usage"][0]["requests"] == 2


async def test_a_restart_knows_the_usage_of_today(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        await streams(served, 4)
    day = records(tmp_path / "slotgate.db")[-1]["day"]
    async with open_ledger(UsageSettings(store=f"sqlite:///{tmp_path / 'slotgate.db'}")) as usage:
        used = await usage.tokens_by_tenant(datetime.fromisoformat(day).date())
        if str(usage.day) == day:
            assert dict(usage.tokens_today) == used
    assert used == {"a": 20}


async def test_the_command_reads_while_the_gateway_runs(tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    store = f'[usage]\nstore = "sqlite:///{tmp_path / "own.db"}"\n'
    async with fu, served_gateway(tmp_path, configuration(fu, store)) as served:
        await streams(served, 3)
        await totals(served)

        def usage(*words: str) -> str:
            done = CliRunner().invoke(main, ["usage", "--config", str(tmp_path / "slotgate.toml"), *words])
            assert (done.exit_code, done.stderr) == (0, "")
            return done.stdout

        assert usage("--by", "tenant").split()[-10:] == [
            "a",
            "3",
            "0",
            "0",
            "9",
            "0",
            "6",
            "0",
            "0",
            usage().split()[-1],
        ]
        assert usage("--by", "tenant,key", "--csv").splitlines()[1].startswith(f"a,{KEY_NAME},3,0,0,9,0,6,")
        assert orjson.loads(usage("--by", "outcome", "--json"))[0]["requests"] == 3
        assert usage("--from", "2020-01-01", "--to", "2020-01-02") == "no records\n"


async def test_a_client_that_did_not_ask_for_usage_sees_none_and_is_recorded_with_it(tmp_path: Path) -> None:
    scripts = iter([stream(T("a"), STOP, DONE), ANSWER])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        first = data_of(await read_stream(served.url, CHAT, chat(), [KEY]))
        second = data_of(await read_stream(served.url, CHAT, chat(), [KEY]))
    assert not any("usage" in chunk for chunk in [*first, *second])
    assert orjson.loads(fu.generations[1].body)["stream_options"] == {"include_usage": True}
    kept = records(tmp_path / "slotgate.db")
    assert [(k["completion_tokens"], k["partial"]) for k in kept] == [(1, 0), (2, 0)]


async def test_postgresql_keeps_the_same_records_as_sqlite(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.fresh()
    fu = ScriptedUpstream(scripts={CHAT: ANSWER})
    async with fu, served_gateway(tmp_path, configuration(fu, f'[usage]\nstore = "{url}"\n')) as served:
        await streams(served, 5)
        assert (await totals(served, "?group=tenant,day"))["usage"][0]["requests"] == 5
        await streams(served, 5)
    store = store_of(UsageSettings(store=url))
    assert store is not None
    assert store.totals(UsageQuery.parse("tenant"))[0].sums == (10, 0, 0, 30, 0, 20, 0, 0)
    assert served.complaints() == []
    assert "s3cret" not in served.log.read_text()


def test_a_folder_that_is_not_there_is_exit_code_2_and_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "slotgate.toml"
    path.write_text(backend_table("http://127.0.0.1:9") + '[usage]\nstore = "sqlite:///nowhere/usage.db"\n')
    for word in ("serve", "check"):
        command = [sys.executable, "-m", "slotgate", word, "--config", str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"usage.store: there is no folder {tmp_path / 'nowhere'}\n"
