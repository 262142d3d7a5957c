"""The nearest recording of a request, and the differences between them."""

from __future__ import annotations

from slotgate.gateway.testing.cassette import Ending, RecordedExchange, RecordedRequest, RecordedResponse
from slotgate.gateway.testing.cassette.difference import differences, nearest

LONG = "All work and no play makes a very long prompt, and nobody wants to read it twice. "


def asked(path: str = "/chat", **members: object) -> RecordedRequest:
    return RecordedRequest("POST", path, (), {"json": members})


def kept(request: RecordedRequest, name: str) -> RecordedExchange:
    return RecordedExchange(
        request, RecordedResponse(200, 0.0, (), (), Ending.COMPLETE, 0.0, closes=False), name
    )


def said(recorded: RecordedRequest, request: RecordedRequest) -> list[str]:
    return [str(difference) for difference in differences(recorded, request)]


def test_equal_requests_have_no_differences() -> None:
    assert said(asked(a=[1, {"b": None}]), asked(a=[1, {"b": None}])) == []


def test_every_difference_has_its_path_and_both_values() -> None:
    recorded = asked(messages=[{"content": "hi"}, {"content": "x"}], seed=1, stream=True)
    assert said(recorded, asked(messages=[{"content": "ho"}], seed=1, stream=1, top_p=0.5)) == [
        'json.messages[0].content: recorded "hi", asked "ho"',
        'json.messages[1]: recorded {"content": "x"}, asked nothing',
        "json.stream: recorded true, asked 1",
        "json.top_p: recorded nothing, asked 0.5",
    ]


def test_a_long_text_is_cut_to_the_part_that_differs() -> None:
    [difference] = said(asked(text=LONG + "yes"), asked(text=LONG + "no"))
    assert 'to read it twice. yes"' in difference
    assert 'to read it twice. no"' in difference
    assert len(difference) < 150


def test_the_nearest_has_the_same_path_and_the_fewest_differences() -> None:
    exchanges = [
        kept(asked("/other", a=1), "other"),
        kept(asked(a=2, b=2), "two"),
        kept(asked(a=1, b=2), "one"),
    ]
    found = nearest(exchanges, asked(a=1, b=1))
    assert found is not None
    assert (found[0].name, len(found[1])) == ("one", 1)
    assert nearest([], asked()) is None
