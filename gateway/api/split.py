"""Splitting a request with an array of prompts, inputs or documents into pieces: requests with one each.

llama-server spreads such an array over its slots. A request that holds several slots has to wait until they
are free together, and keeps them idle meanwhile. Its pieces need one slot each, whenever one is free, and
requests of others pass between them. Every piece has the array's member with one element, and all other
members of the request. `api/merge.py` merges the answers.

Arrays that llama-server would not take as several texts are left alone, and it judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from slotgate.gateway.api.merge import AnswerForm
from slotgate.gateway.api.prompt_size import PromptSize, measured
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.request_body import Body

__all__ = ["ArraySplit", "PieceBodies", "split_array", "split_documents"]

Json = dict[str, Any]
_RANKED = AnswerForm("results", score="relevance_score")
_RANKED_TEXTS = AnswerForm(score="score")
"""The form of text-embeddings-inference. llama-server answers in it if the request has `texts`."""


@dataclass(frozen=True, slots=True)
class ArraySplit:
    """An array that is asked for one element at a time."""

    name: str
    """The member of the body that holds the array."""
    elements: Sequence[object]
    form: AnswerForm
    left_out: tuple[str, ...] = ()
    """Other members that the pieces do not have."""

    @property
    def own_members(self) -> tuple[str, ...]:
        """The members of the request that a piece does not take over."""
        return (self.name, *self.left_out)


class PieceBodies:
    """Makes the bodies of the pieces, one at a time. What they have in common is in memory once."""

    def __init__(self, split: ArraySplit, rest: bytes) -> None:
        """`rest` is the JSON object of the other members."""
        self._name = split.name
        self._elements = list(split.elements)
        before = rest.rstrip().removesuffix(b"}").rstrip()
        comma = b"" if before.endswith(b"{") else b","
        self._before = b"%b%b%b:[" % (before, comma, orjson.dumps(split.name))

    def __len__(self) -> int:
        return len(self._elements)

    def piece(self, position: int) -> tuple[Body, PromptSize]:
        """Return the body of a piece, and its size. Raises `ClientError` if it is nested too deeply."""
        element = self._elements[position]
        try:
            encoded = orjson.dumps(element)
        except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
            message = f"{self._name} is nested too deeply"
            raise ClientError("invalid_request", message, param=self._name) from error
        size = measured({"element": element}, encoded)
        return (self._before, encoded, b"]}"), replace(size, text_bytes=size.text_bytes + len(self._before))

    def let_go(self, position: int) -> None:
        """Free the element of a piece that has been answered."""
        self._elements[position] = None


def split_array(form: AnswerForm, *names: str) -> Callable[[Json], ArraySplit | None]:
    """Return a function that splits the first of these members that is given, if it has several texts."""

    def split(members: Json) -> ArraySplit | None:
        name = next((name for name in names if members.get(name) is not None), names[0])
        elements = members.get(name)
        if not isinstance(elements, list) or len(elements) < 2 or any(type(one) is int for one in elements):
            return None
        return ArraySplit(name, elements, form)

    return split


def split_documents(members: Json) -> ArraySplit | None:
    """Split the documents of a request for ranks. The best ones are chosen after the merge."""
    given = [name for name in ("documents", "texts") if members.get(name) is not None]
    most = members.get("top_n")
    if len(given) != 1 or not (most is None or (type(most) is int and most >= 0)):
        return None
    documents = members[given[0]]
    if len(documents) < 2 or not all(isinstance(document, str) for document in documents):
        return None
    form = _RANKED_TEXTS if "texts" in members else _RANKED
    return ArraySplit(given[0], documents, replace(form, most=most), left_out=("top_n",))
