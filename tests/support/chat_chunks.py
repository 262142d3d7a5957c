"""Hypothesis strategies for chat chunks with any text, escapes, key order and fields.

A chunk is drawn as bytes, because the same document can be written in many ways. `orjson` gives its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from slotgate.gateway.api.chunks import TEXT_KINDS

Json = dict[str, Any]
_PLACE = "PLACE-OF-THE-TEXT"


def _units(text: str) -> str:
    """Return the text with every character as \\uXXXX, or as a surrogate pair beyond the basic plane."""
    wide = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{wide[at : at + 2].hex()}" for at in range(0, len(wide), 2)) + '"'


ESCAPES: dict[str, Callable[[str], str]] = {
    "least": lambda text: json.dumps(text, ensure_ascii=False),
    "ascii": json.dumps,
    "every": _units,
    "slash": lambda text: json.dumps(text, ensure_ascii=False).replace("/", "\\/"),
}

texts = st.one_of(
    st.text(max_size=8),
    st.text(alphabet='"\\/:,{}[]\b\f\n\r\t\x7f\x00é\u2028\u2029\x85😀', max_size=6),
    st.sampled_from(
        ["assistant", "content", "chat.completion.chunk", "m", ":", ",", '","', "\u2063slotgate\u2063"]
    ),
    st.sampled_from([_PLACE, "data: [DONE]\n\n", '"},"finish_reason":null}]}', "0", "null", " "]),
)

extra_fields: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {},
    optional={
        "system_fingerprint": st.sampled_from(["b1-7e4c0a9", "content"]),
        "service_tier": st.none(),
        "usage": st.none(),
        "x": st.sampled_from([None, 1.5, [], {"content": "x"}]),
    },
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The form in which one upstream writes the chunks of a stream."""

    kind: str
    top: tuple[str, ...]
    choice: tuple[str, ...]
    extra: Json
    spaced: bool

    def payload(self, text: str, escape: str = "least", *, created: int = 1, **choice: Any) -> bytes:  # noqa: ANN401
        """Draw a content delta. `choice` adds members to the choice."""
        place = json.dumps(_PLACE).encode()
        return self.chunk({self.kind: _PLACE}, created=created, **choice).replace(
            place, ESCAPES[escape](text).encode()
        )

    def chunk(
        self,
        delta: object,
        *,
        created: int = 1,
        more: Json | None = None,
        **choice: Any,  # noqa: ANN401
    ) -> bytes:
        """Draw a chunk of one choice. `more` are fields beside the choices."""
        members: Json = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **choice}
        names = [*self.choice, *(name for name in choice if name not in self.choice)]
        fields: Json = {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": created,
            "model": "/srv/m.gguf",
            "choices": [{name: members[name] for name in names}],
        }
        whole = {name: fields[name] for name in self.top} | self.extra | (more or {})
        separators = (", ", ": ") if self.spaced else (",", ":")
        return json.dumps(whole, ensure_ascii=False, separators=separators).encode()


def _with(needed: tuple[str, ...], optional: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Draw the required names and some of the optional ones, in any order."""
    some = st.sets(st.sampled_from(optional)).map(lambda names: [*needed, *sorted(names)])
    return some.flatmap(st.permutations).map(tuple)


shapes = st.builds(
    Shape,
    kind=st.sampled_from(TEXT_KINDS),
    top=_with(("choices",), ("id", "object", "created", "model")),
    choice=_with(("index", "delta"), ("finish_reason", "logprobs")),
    extra=extra_fields,
    spaced=st.booleans(),
)

PLAIN = Shape(
    kind="content",
    top=("choices", "created", "id", "model", "object"),
    choice=("finish_reason", "index", "delta"),
    extra={},
    spaced=False,
)
"""The form in which llama-server writes chunks."""
