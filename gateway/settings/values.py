"""The types of settings, and the frozen table that holds them.

A type is annotated with its limits. pydantic reads them to check a value, and `wording` reads them to say
which values are allowed. Validators here raise `ValueError` with a message that begins with "must be";
`wording` adds the value that was found, unless it is secret.

Every time has a largest value, so nothing waits for ever. Empty text means "not set" wherever a key may be
left out.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

__all__ = [
    "LONGEST_S",
    "SHORTEST_S",
    "SQLITE",
    "SQLITE_DEFAULT",
    "Argument",
    "BackendUrl",
    "Bytes",
    "Count",
    "CountOrZero",
    "Hidden",
    "Host",
    "KeyHash",
    "Many",
    "MediaHost",
    "MillisecondsOrZero",
    "ModelChoice",
    "ModelName",
    "Name",
    "Origin",
    "Port",
    "Seconds",
    "SecondsOrZero",
    "StreamBytes",
    "Table",
    "Text",
    "TokenBudget",
    "Tokens",
    "UsageStore",
    "Variable",
    "Weight",
    "is_model_name",
]

SHORTEST_S = 0.001
LONGEST_S = 7 * 24 * 3600

Item = TypeVar("Item")

HASH = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,63}")
MODEL_NAME_MARKS = "._:@+/-"
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SQLITE = "sqlite:///"
SQLITE_DEFAULT = "sqlite:///slotgate.db"
DEFAULT_PORTS = {"http": "80", "https": "443"}


class Hidden:
    """Marks a field whose value must never appear in a repr, an explanation or a fault."""


class Table(BaseModel):
    """A frozen table of settings.

    Unknown keys are faults, types are not converted, secrets are not printed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            hidden = any(isinstance(mark, Hidden) for mark in field.metadata)
            yield name, Masked(value) if hidden and value else value


class Masked:
    """Stands for a secret in a repr. It shows that the secret is set and how many values it has."""

    def __init__(self, value: object) -> None:
        self._text = f"<{len(value)} hidden>" if isinstance(value, tuple) else "<hidden>"

    def __repr__(self) -> str:
        return self._text


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be text without line breaks and control characters")
    return text


def _filled(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("must be text that is not empty")
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("must be 1 to 64 letters, digits and . _ : @ + - with a letter or digit first")
    return text


def is_model_name(text: str) -> bool:
    """Return True for letters and digits of any script, their combining marks, and `MODEL_NAME_MARKS`."""
    letters = (c.isalnum() or c in MODEL_NAME_MARKS or unicodedata.category(c)[0] == "M" for c in text)
    return 1 <= len(text) <= 256 and text[0].isalnum() and all(letters)


def _model_name(text: str) -> str:
    if not is_model_name(text):
        raise ValueError("must be 1 to 256 letters, digits and . _ : @ + / - with a letter or digit first")
    return text


def _model_choice(text: str) -> str:
    if text != "*" and not is_model_name(text):
        raise ValueError('must be the name of a model, or "*" for all')
    return text


def _key_hash(text: str) -> str:
    if not HASH.fullmatch(text):
        raise ValueError(
            "must be a key's sha256 in 64 lower-case hex digits, as `slotgate keys new` prints it"
        )
    return text


def _host(text: str) -> str:
    if not _is_address(text) and not HOST_NAME.fullmatch(text):
        raise ValueError("must be an IP address or a host name, without scheme, port or brackets")
    return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _media_host(text: str) -> str:
    name, colon, port = text.lower().partition(":")
    bare = name.removeprefix("*.")
    below = bare != name
    if text != "*" and not (
        HOST_NAME.fullmatch(bare)
        and not bare.endswith(".")
        and not (below and _is_number(bare.rpartition(".")[2]))
        and (not colon or (port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= 65535))
    ):
        raise ValueError('must be "*", host, host:port, *.domain or *.domain:port, without a scheme')
    return f"{name}{colon}{port and int(port)}" if colon else name


def _is_number(text: str) -> bool:
    """Return True for the last part of an address, below which there are no hosts."""
    return text.isdecimal() or text.startswith("0x")


def _origin(text: str) -> str:
    match = ORIGIN.fullmatch(text.lower())
    if text != "*" and not match:
        raise ValueError('must be "*" or scheme://host[:port], without a path')
    if match and match[3] and (int(match[3]) > 65535 or match[3] == DEFAULT_PORTS.get(match[1])):
        raise ValueError("must be an origin as browsers send it: they leave out the default port")
    return text.lower()


def _backend_url(text: str) -> str:
    if not text:
        return text
    if text.startswith("unix:"):
        if not text.startswith("unix:/") or not text.isprintable():
            raise ValueError("must be unix: and the absolute path of a socket")
        return text
    return _http_url(text)


def _http_url(text: str) -> str:
    wanted = "must be http://host:port, https://host:port or unix:/path"
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(wanted)
    try:
        url = urlsplit(text)
        url.port  # noqa: B018  reading the port checks it
    except ValueError as wrong:
        raise ValueError(wanted) from wrong
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(wanted)
    if url.username is not None or url.password is not None:
        raise ValueError("must be a URL without a user or password: the backend's key comes from api_key_env")
    if url.query or url.fragment:
        raise ValueError("must be a URL without ? and #")
    if url.path.rstrip("/").endswith("/v1"):
        raise ValueError("must be the URL of the server itself: leave out /v1")
    return text


def _usage_store(text: str) -> str:
    if text in ("", "none"):
        return text or SQLITE_DEFAULT
    if text.startswith(SQLITE):
        if text.removeprefix(SQLITE) in ("", ":memory:"):
            raise ValueError("must name a file after sqlite:///, because records must outlive the process")
        return text
    if not _is_postgresql(text):
        wanted = (
            'must be "none", sqlite:///FILE (sqlite:////FILE from the root) or postgresql://host/database'
        )
        raise ValueError(wanted)
    return text


def _is_postgresql(text: str) -> bool:
    try:
        url = urlsplit(text)
        url.port  # noqa: B018  reading the port checks it
    except ValueError:
        return False
    whole = not re.search(r"%(?![0-9A-Fa-f]{2})", text)  # or the driver would repeat the URL in its error
    return url.scheme in ("postgresql", "postgres") and text.startswith(f"{url.scheme}://") and whole


def _variable(text: str) -> str:
    if text and not VARIABLE.fullmatch(text):
        raise ValueError("must be the name of an environment variable")
    return text


Many = Annotated[tuple[Item, ...], Strict(False)]  # TOML has lists; settings are frozen, so they hold tuples

Text = Annotated[str, AfterValidator(_plain)]
Argument = Annotated[str, AfterValidator(_filled)]
Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
ModelChoice = Annotated[str, AfterValidator(_model_choice)]
KeyHash = Annotated[str, AfterValidator(_key_hash)]
Host = Annotated[str, AfterValidator(_host)]
MediaHost = Annotated[str, AfterValidator(_media_host)]
Origin = Annotated[str, AfterValidator(_origin)]
BackendUrl = Annotated[str, AfterValidator(_backend_url)]
Variable = Annotated[str, AfterValidator(_variable)]
UsageStore = Annotated[str, AfterValidator(_plain), AfterValidator(_usage_store)]

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: any free port
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
TokenBudget = Annotated[int, Field(ge=1, le=10**15)]
Bytes = Annotated[int, Field(ge=1, le=2**40)]
StreamBytes = Annotated[int, Field(ge=65536, le=2**40)]  # the least that a stream can work with
Weight = Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
MillisecondsOrZero = Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)]
