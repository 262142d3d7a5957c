"""Splitting requests with arrays, and merging the answers to their pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.api.merge import AnswerForm, MergedAnswer
from slotgate.gateway.api.request import AddedOptions, RequestParameters
from slotgate.gateway.api.split import ArraySplit, PieceBodies
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import ClientError, UpstreamError

Json = dict[str, Any]
FORMATS = {endpoint.name: endpoint.body_format for endpoint in ENDPOINTS}
TEXTS = ["a", [1, "b", 2], {"prompt_string": "c"}]

SPLIT: list[tuple[str, Json, str, int]] = [
    ("embeddings", {"input": TEXTS}, "input", 3),
    ("embedding", {"content": ["a", "b"]}, "content", 2),
    ("embedding", {"input": ["a", "b"], "content": ["c"]}, "input", 2),
    ("completions", {"prompt": TEXTS}, "prompt", 3),
    ("native", {"prompt": TEXTS, "stream": False}, "prompt", 3),
    ("rerank", {"query": "q", "documents": ["a", ""], "top_n": 1}, "documents", 2),
    ("rerank", {"query": "q", "texts": ["a", "b"], "top_n": None}, "texts", 2),
    ("rerank", {"query": "q", "documents": ["a", "b"], "texts": None}, "documents", 2),
]
WHOLE: list[tuple[str, Json]] = [
    ("embeddings", {"input": "a"}),
    ("embeddings", {"input": ["a"]}),
    ("embeddings", {"input": [1, 2, 3]}),
    ("embeddings", {"input": ["a", 2]}),
    ("completions", {"prompt": {"prompt_string": "a"}}),
    ("completions", {"prompt": ["a", "b"], "stream": True}),
    ("completions", {"prompt": []}),
    ("native", {"prompt": ["a", "b"], "stream": True}),
    ("infill", {"input_prefix": ["a", "b"]}),
    ("chat", {"messages": [{"role": "user"}] * 2}),
    ("rerank", {"query": "q", "documents": ["a", 5]}),
    ("rerank", {"query": "q", "documents": ["a", "b"], "texts": ["c"]}),
    *(("rerank", {"query": "q", "documents": ["a", "b"], "top_n": top}) for top in (-1, 1.5, "1", True)),
]


def parameters(name: str, members: Json) -> RequestParameters:
    return RequestParameters.from_members(members, FORMATS[name])


@pytest.mark.parametrize(("name", "members", "member", "pieces"), SPLIT)
def test_an_array_is_split_into_pieces_of_one_slot_each(
    name: str, members: Json, member: str, pieces: int
) -> None:
    request = parameters(name, members)
    assert request.split is not None
    assert (request.split.name, len(request.split.elements), request.width(4)) == (member, pieces, 1)


@pytest.mark.parametrize(("name", "members"), WHOLE)
def test_a_stream_or_a_body_without_an_array_of_texts_is_asked_as_a_whole(name: str, members: Json) -> None:
    assert parameters(name, members).split is None


def test_only_the_choices_of_a_piece_are_wide() -> None:
    request = parameters("completions", {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 5})
    assert request.width(4) == 2
    assert request.answer_tokens(TenantIdentity("t")) == 10
    assert request.cost(0.0, TenantIdentity("t")) == 30


@pytest.mark.parametrize(("name", "members", "member", "pieces"), SPLIT)
def test_a_piece_has_one_element_and_the_other_members(
    name: str, members: Json, member: str, pieces: int
) -> None:
    request = parameters(name, members)
    assert request.split is not None
    changes = request.changes(members, TenantIdentity("t"), None, AddedOptions())
    rest = {each: value for each, value in members.items() if changes.get(each, b"") is not None}
    bodies = PieceBodies(request.split, orjson.dumps(rest))
    asked = [orjson.loads(b"".join(bodies.piece(position)[0])) for position in range(pieces)]
    others = {each: members[each] for each in members if each not in (member, "top_n")}
    assert asked == [{**others, member: [element]} for element in members[member]]


def test_the_size_of_a_piece_counts_its_pictures_apart() -> None:
    picture = {"prompt_string": "a", "multimodal_data": ["iVBORw0KGgo" * 100]}
    bodies = PieceBodies(ArraySplit("prompt", ["abc", picture], AnswerForm()), b'{"n":1}')
    text, pictured = (bodies.piece(position)[1] for position in range(2))
    assert (text.text_bytes, text.pictures) == (len(b'{"n":1,"prompt":["abc"'), 0)
    assert pictured.pictures == 1
    assert pictured.text_bytes < 100


def test_an_element_that_is_nested_too_deeply_is_the_clients_fault() -> None:
    deep = orjson.loads(b"[" * 600 + b'"a"' + b"]" * 600)
    bodies = PieceBodies(ArraySplit("input", ["a", deep], AnswerForm("data")), b"{}")
    with pytest.raises(ClientError) as error:
        bodies.piece(1)
    assert error.value.param == "input"


def usage(prompt: int, completion: int = 0, cached: int = 0) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def choice(text: str, index: int = 0) -> Json:
    return {"index": index, "text": text}


MERGES: dict[str, tuple[AnswerForm, int, list[Any], Any]] = {
    "embeddings": (
        AnswerForm("data"),
        1,
        [
            {"object": "list", "usage": usage(2), "data": [{"embedding": [0.5], "index": 0}]},
            {"object": "list", "usage": usage(3), "data": [{"embedding": "AAA=", "index": 0}]},
        ],
        {
            "object": "list",
            "usage": usage(5),
            "data": [{"embedding": [0.5], "index": 0}, {"embedding": "AAA=", "index": 1}],
        },
    ),
    "choices": (
        AnswerForm("choices"),
        2,
        [
            {
                "id": "x",
                "choices": [choice("a"), choice("b", 1)],
                "usage": usage(2, 4, 1),
                "timings": {"a": 1},
            },
            {"id": "x", "choices": [choice("c"), choice("d", 1)], "usage": usage(3, 4), "timings": {"a": 2}},
        ],
        {
            "id": "x",
            "choices": [choice("a"), choice("b", 1), choice("c", 2), choice("d", 3)],
            "usage": usage(5, 8, 1),
            "timings": {"a": 1},
        },
    ),
    "native": (
        AnswerForm(),
        1,
        [{"index": 0, "content": "a"}, {"index": 0, "content": "b"}],
        [{"index": 0, "content": "a"}, {"index": 1, "content": "b"}],
    ),
    "native choices": (
        AnswerForm(),
        2,
        [[{"index": 0}, {"index": 1}], [{"index": 0}, {"index": 1}]],
        [{"index": 0}, {"index": 1}, {"index": 2}, {"index": 3}],
    ),
    "native fields": (
        AnswerForm(),
        1,
        [{"content": "a"}, {"content": "b"}],
        [{"content": "a"}, {"content": "b"}],
    ),
    "native embedding": (
        AnswerForm(),
        1,
        [[{"index": 0, "embedding": [[1.0]]}], [{"index": 0, "embedding": [[2.0]]}]],
        [{"index": 0, "embedding": [[1.0]]}, {"index": 1, "embedding": [[2.0]]}],
    ),
    "ranks": (
        AnswerForm("results", score="relevance_score", most=2),
        1,
        [
            {"usage": usage(2), "results": [{"index": 0, "relevance_score": score}]}
            for score in (-1.5, 0.5, 2, 0.5)
        ],
        {
            "usage": usage(8),
            "results": [{"index": 2, "relevance_score": 2}, {"index": 1, "relevance_score": 0.5}],
        },
    ),
    "no ranks": (
        AnswerForm("results", score="relevance_score", most=0),
        1,
        [{"usage": usage(2), "results": [{"index": 0, "relevance_score": 1.5}]}] * 2,
        {"usage": usage(4), "results": []},
    ),
    "ranks of texts": (
        AnswerForm(score="score"),
        1,
        [[{"index": 0, "score": 0.5, "text": "a"}], [{"index": 0, "score": 1.5, "text": "b"}]],
        [{"index": 1, "score": 1.5, "text": "b"}, {"index": 0, "score": 0.5, "text": "a"}],
    ),
}


def merged(form: AnswerForm, choices: int, answers: Sequence[Any], order: Sequence[int]) -> object:
    whole = MergedAnswer(form, len(answers), choices)
    for position in order:
        whole.add(position, orjson.loads(orjson.dumps(answers[position])))
    return orjson.loads(whole.whole())


@pytest.mark.parametrize("case", MERGES)
def test_answers_that_come_in_any_order_are_merged_in_the_order_of_the_array(case: str) -> None:
    form, choices, answers, expected = MERGES[case]
    for order in itertools.permutations(range(len(answers))):
        assert merged(form, choices, answers, order) == expected


@pytest.mark.parametrize("case", MERGES)
def test_the_size_of_the_parts_is_that_of_their_json(case: str) -> None:
    form, choices, answers, _ = MERGES[case]
    whole = MergedAnswer(form, len(answers), choices)
    for position, answer in enumerate(answers):
        before = whole.size
        whole.add(position, orjson.loads(orjson.dumps(answer)))
        assert whole.size > before
    kept = [fragment for _, _, fragment in whole._ranked] if form.score else whole._fragments
    assert whole.size == sum(map(len, kept))


def test_members_keep_their_order_and_their_first_values() -> None:
    form, choices, answers, expected = MERGES["embeddings"]
    whole = MergedAnswer(form, 2, choices)
    for position in (1, 0):
        whole.add(position, orjson.loads(orjson.dumps(answers[position])))
    assert whole.whole() == orjson.dumps(expected)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (AnswerForm("data"), []),
        (AnswerForm("data"), {}),
        (AnswerForm("data"), {"data": []}),
        (AnswerForm("data"), {"data": [1]}),
        (AnswerForm(), []),
        (AnswerForm(), ["a"]),
        (AnswerForm(score="score"), [{"score": None}]),
        (AnswerForm("results", score="relevance_score"), {"results": [{"index": 0}]}),
    ],
)
def test_an_answer_of_another_form_is_the_backends_fault(form: AnswerForm, answer: Any) -> None:  # noqa: ANN401
    with pytest.raises(UpstreamError):
        MergedAnswer(form, 2).add(0, answer)
