"""The player on virtual time: what it plays, and at which times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from starlette.types import Message, Scope

from slotgate.gateway.testing.cassette import (
    AT_ONCE,
    Cassette,
    Ending,
    Player,
    RecordedExchange,
    RecordedRead,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.player import speed_of
from slotgate.gateway.testing.cassette.request import as_recorded
from tests.support.virtual_time import run_virtual

READS = (
    RecordedRead(100.0, b"data: a\n\n"),
    RecordedRead(250.5, b"data: b\n\nda"),
    RecordedRead(250.5, b"ta: c\n\n"),
)


@dataclass
class PlayedClient:
    """A client in memory. It keeps each piece of the response with its time."""

    leaves_at: float | None = None
    messages: list[tuple[float, Message]] = field(default_factory=list)
    hung_up_at: float | None = None

    async def ask(self, player: Player, members: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        loop = asyncio.get_running_loop()
        inbox = [{"type": "http.request", "body": orjson.dumps(members)}]

        async def receive() -> Message:
            if inbox:
                return inbox.pop()
            await asyncio.sleep(1e6 if self.leaves_at is None else self.leaves_at)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.messages.append((round(loop.time(), 6), message))

        def hang_up() -> None:
            self.hung_up_at = round(loop.time(), 6)

        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "extensions": {"slotgate.hang_up": hang_up},
        }
        await player(scope, receive, send)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.messages]

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for _, message in self.messages if message["type"] == "http.response.body"]

    @property
    def said(self) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(b"".join(self.pieces))
        return content


def recorded(
    members: dict[str, Any],
    *,
    status: int | None = 200,
    name: str = "",
    **changes: Any,  # noqa: ANN401
) -> RecordedExchange:
    request, _ = as_recorded("POST", "/v1/chat/completions", "", [], orjson.dumps(members))
    facts = {"reads": READS, "ending": Ending.COMPLETE, "closes": False, **changes}
    return RecordedExchange(
        request, RecordedResponse(status, 50.0, (("a", "b"),), end_ms=300.0, **facts), name
    )


def played(
    exchanges: Sequence[RecordedExchange],
    *asked: dict[str, Any],
    speed: float = AT_ONCE,
    client: PlayedClient | None = None,
) -> tuple[PlayedClient, Player]:
    """Play the requests. Return the client of the last one, and the player."""
    client = client or PlayedClient()
    player = Player(Cassette(exchanges), speed=speed)

    async def run() -> None:
        for members in asked[:-1]:
            await PlayedClient().ask(player, members)
        await client.ask(player, asked[-1])

    run_virtual(run())
    return client, player


@pytest.mark.parametrize(
    ("speed", "times"),
    [
        (1.0, [0.05, 0.1, 0.2505, 0.2505, 0.3]),
        (10.0, [0.005, 0.01, 0.02505, 0.02505, 0.03]),
        (AT_ONCE, [0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_every_read_is_one_write_at_its_time(speed: float, times: list[float]) -> None:
    client, _ = played([recorded({"a": 1})], {"a": 1}, speed=speed)
    assert client.times == times
    assert client.pieces == [*(read.data for read in READS), b""]
    assert client.hung_up_at is None


@pytest.mark.parametrize("ending", [Ending.CUT_SHORT, Ending.ABANDONED])
def test_a_response_that_ended_early_ends_at_the_same_byte(ending: Ending) -> None:
    client, _ = played([recorded({"a": 1}, ending=ending)], {"a": 1}, speed=1.0)
    assert client.pieces == [read.data for read in READS]
    assert client.hung_up_at == 0.3


def test_a_connection_that_ended_before_the_head_ends_there_again() -> None:
    client, _ = played([recorded({"a": 1}, status=None, ending=Ending.CUT_SHORT, reads=())], {"a": 1})
    assert (client.messages, client.hung_up_at) == ([], 0.0)


def test_equal_requests_get_successive_recordings_and_then_the_last_one() -> None:
    exchanges = [recorded({"a": 1}, name=name) for name in ("one", "two")]
    _, player = played(exchanges, *[{"a": 1}] * 4)
    assert player.played == {"one": 1, "two": 3}


def test_playing_stops_when_the_client_leaves() -> None:
    client, _ = played([recorded({"a": 1})], {"a": 1}, speed=1.0, client=PlayedClient(leaves_at=0.2))
    assert client.pieces == [READS[0].data]


def test_a_miss_names_the_nearest_recording_and_the_differences() -> None:
    client, player = played([recorded({"a": 1, "b": "x"}, name="n.json")], {"a": 2, "b": "x"})
    error = client.said["error"]
    assert client.messages[0][1]["status"] == 404
    assert (error["code"], error["type"]) == ("not_recorded", "invalid_request_error")
    assert error["message"].endswith("the nearest is n.json, which differs in json.a: recorded 1, asked 2")
    assert [str(miss.differences[0]) for miss in player.misses] == ["json.a: recorded 1, asked 2"]


def test_a_miss_on_v1_messages_has_anthropics_shape() -> None:
    client = PlayedClient()
    run_virtual(client.ask(Player(Cassette([])), {}, "/v1/messages"))
    assert (client.said["type"], client.said["error"]["type"]) == ("error", "not_found_error")


@pytest.mark.parametrize(("word", "speed"), [("recorded", 1.0), ("max", AT_ONCE), ("0.5", 0.5), ("20", 20.0)])
def test_speeds_are_parsed(word: str, speed: float) -> None:
    assert speed_of(word) == speed


@pytest.mark.parametrize("word", ["fast", "0", "-1", "nan", "inf"])
def test_an_invalid_speed_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=repr(word)):
        speed_of(word)
