"""The folder of a cassette: file names, whole files, and the replacement of earlier recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotgate.gateway.testing.cassette import (
    Cassette,
    CassetteError,
    Ending,
    RecordedExchange,
    RecordedRequest,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.cassette import CassetteFolder

A = RecordedRequest("POST", "/v1/chat/completions", (), {"json": {"seed": 1}})
B = RecordedRequest("GET", "/v1/models")


def answered(request: RecordedRequest, status: int = 200) -> RecordedExchange:
    return RecordedExchange(
        request, RecordedResponse(status, 0.0, (), (), Ending.COMPLETE, 0.0, closes=False)
    )


def recorded(folder: Path, *requests: RecordedRequest, status: int = 200) -> list[str]:
    """Record an answer to each request. Return all file names in the folder."""
    shelf = CassetteFolder(folder)
    places = [(shelf.new_file(request), request) for request in requests]
    for new_file, request in reversed(places):  # they need not end in the order in which they began
        shelf.keep(new_file, answered(request, status))
    return sorted(path.name for path in folder.iterdir())


def test_file_names_are_the_same_in_every_run_and_numbered_by_request_order(tmp_path: Path) -> None:
    names = recorded(tmp_path / "one", A, B, A)
    assert names == recorded(tmp_path / "two", A, B, A)
    assert names == [
        f"get-v1-models-{B.key}.json",
        f"v1-chat-completions-{A.key}-2.json",
        f"v1-chat-completions-{A.key}.json",
    ]


def test_recordings_of_a_request_keep_the_order_of_requests(tmp_path: Path) -> None:
    shelf = CassetteFolder(tmp_path)
    for status in range(200, 212):
        shelf.keep(shelf.new_file(A), answered(A, status))
    found = Cassette.load(tmp_path).of(A)
    assert [exchange.response.status for exchange in found] == list(range(200, 212))


def test_recording_again_replaces_files_of_repeated_requests_only(tmp_path: Path) -> None:
    recorded(tmp_path, A, A, A, B)
    assert recorded(tmp_path, A, status=201) == [
        f"get-v1-models-{B.key}.json",
        f"v1-chat-completions-{A.key}.json",
    ]
    assert [each.response.status for each in Cassette.load(tmp_path).of(A)] == [201]
    assert len(recorded(tmp_path, A, A)) == 3


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path, A)
    before = (tmp_path / f"v1-chat-completions-{A.key}.json").read_bytes()

    def half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slotgate.gateway.testing.cassette.cassette._write_private", half)
    with pytest.raises(CassetteError, match="No space left"):
        recorded(tmp_path, A, status=201)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        (f"v1-chat-completions-{A.key}.json", before)
    ]


def test_an_error_names_the_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(CassetteError, match="no recordings"):
        Cassette.load(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CassetteError, match=r"broken\.json: Expecting"):
        Cassette.load(tmp_path)


def test_an_unwritable_folder_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CassetteError, match="cannot record into"):
        CassetteFolder(tmp_path / "file")


def test_an_error_names_all_invalid_files(tmp_path: Path) -> None:
    recorded(tmp_path, A)
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text("{")
    with pytest.raises(CassetteError, match=r"(?s)one\.json: .*\n.*two\.json: "):
        Cassette.load(tmp_path)
