"""Keeps keys out of cassettes.

* By name: headers, members of a body and parameters of a query that carry keys are left out.
* By value: a key that the request presented is masked wherever else it appears, in the response too (an
  upstream may answer "incorrect key sk-…").
* By shape: texts that look like an API key of a known vendor are masked.

A mask is as long as the text that it hides, so lengths and the borders of reads stay true.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["REMOVED", "Redaction", "is_secret_header", "secrets_in"]

REMOVED = "[removed]"
MIN_SECRET_BYTES = 8
"""Shorter keys are placeholders such as `none`. Masking such a word would damage other texts."""
_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "openai-organization", "openai-project"}
)
_SECRET_MEMBERS = frozenset(
    {
        "accesstoken",
        "apikey",
        "apitoken",
        "authorization",
        "authtoken",
        "bearertoken",
        "clientsecret",
        "cookie",
        "password",
        "refreshtoken",
        "secret",
        "secretkey",
        "xapikey",
    }
)
_SECRET_PARAMETERS = _SECRET_MEMBERS | {"key", "token", "signature", "sig"}
_key_shaped = re.compile(
    rb"\b(?:sk|sg|rk|hf|gsk|xai|ghp|glpat)[-_][A-Za-z0-9_-]{20,}|\bAIza[A-Za-z0-9_-]{30,}"
)
_is_secret_header = re.compile(r"api-?key|secret|auth-?token|access-?token|password").search


class Redaction:
    """Masks the secrets of one exchange, among them those that its request presented."""

    def __init__(self, presented: Iterable[bytes] = ()) -> None:
        secrets = {secret for secret in presented if len(secret) >= MIN_SECRET_BYTES}
        self._secrets = secrets
        literal = [re.escape(secret) for secret in sorted(secrets, key=len, reverse=True)]
        self._patterns = [re.compile(b"|".join(literal))] if literal else []
        self._patterns.append(_key_shaped)

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]], query: Iterable[tuple[str, str]] = ()) -> Redaction:
        return cls([*_presented(headers), *(value.encode() for name, value in query if _is_parameter(name))])

    def __repr__(self) -> str:
        return f"<Redaction of {len(self._secrets)} secrets>"

    def knowing(self, secrets: Iterable[bytes]) -> Redaction:
        """Return a redaction that masks these secrets as well."""
        return Redaction([*self._secrets, *secrets])

    def text(self, text: str) -> str:
        data = text.encode(errors="surrogatepass")
        masked = self._masked(data)
        return text if masked == data else masked.decode(errors="surrogatepass")

    def reads(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Return the pieces, masked. A secret may begin in one piece and end in the next."""
        whole = b"".join(pieces)
        masked = self._masked(whole)
        if masked == whole:
            return list(pieces)
        borders = [0, *itertools.accumulate(map(len, pieces))]
        return [masked[start:end] for start, end in itertools.pairwise(borders)]

    def value(self, value: Any) -> Any:  # noqa: ANN401
        """Return a JSON value without secrets. Only texts are secrets, so schemas with `password` stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._member(name, item) for name, item in value.items()}
        return value

    def parameters(self, query: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(name, REMOVED if _is_parameter(name) else self.text(value)) for name, value in query]

    def _member(self, name: str, value: Any) -> Any:  # noqa: ANN401
        hidden = isinstance(value, str) and _plain(name) in _SECRET_MEMBERS
        return REMOVED if hidden else self.value(value)

    def _masked(self, data: bytes) -> bytes:
        for pattern in self._patterns:
            data = pattern.sub(lambda found: b"*" * len(found[0]), data)
        return data


def is_secret_header(name: str) -> bool:
    return name in _SECRET_HEADERS or _is_secret_header(name) is not None


def secrets_in(members: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the values at any depth of a body whose member names mark them as keys."""
    for name, value in members.items():
        if isinstance(value, str) and _plain(name) in _SECRET_MEMBERS:
            yield value.encode(errors="surrogatepass")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from secrets_in(item)


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if is_secret_header(name.decode("latin-1").lower()):
            yield value.strip()
            yield value.strip().rpartition(b" ")[2]  # the credentials behind `Bearer`
            yield from (pair.partition(b"=")[2].strip() for pair in value.split(b";"))


def _is_parameter(name: str) -> bool:
    return _plain(name) in _SECRET_PARAMETERS


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
