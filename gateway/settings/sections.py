"""The tables that a configuration has once, one class each. docs/configuration.md explains their settings."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from slotgate.gateway.settings.values import (
    SQLITE,
    SQLITE_DEFAULT,
    Bytes,
    Count,
    CountOrZero,
    Hidden,
    Host,
    KeyHash,
    Many,
    MediaHost,
    MillisecondsOrZero,
    Origin,
    Port,
    Seconds,
    SecondsOrZero,
    StreamBytes,
    Table,
    Text,
    UsageStore,
)

__all__ = ["AdmissionSettings", "ServerSettings", "StreamingSettings", "TimeoutsSettings", "UsageSettings"]

LOOPBACK_V4 = ipaddress.ip_network("127.0.0.0/8")
LOOPBACK_V6 = ipaddress.ip_address("::1")


class ServerSettings(Table):
    """`[server]`: where the gateway listens, and limits for each connection."""

    host: Host = "127.0.0.1"
    port: Port = 8080
    allow_anonymous: bool = False
    allowed_hosts: Many[Host] = ()
    allowed_media_hosts: Many[MediaHost] = ()
    keep_alive_s: Seconds = 75
    header_timeout_s: Seconds = 10
    body_timeout_s: Seconds = 60
    max_header_bytes: Bytes = 65536
    max_connections: Count = 4096
    max_connections_per_address: CountOrZero = 1024
    drain_delay_s: SecondsOrZero = 0
    tls_cert: Text = ""
    tls_key: Text = ""
    operator_key_hashes: Annotated[Many[KeyHash], Hidden()] = ()
    max_body_bytes: Bytes = 33554432
    expose_props: bool = False
    expose_slots: bool = False
    shutdown_grace_s: Seconds = 30
    cors_origins: Many[Origin] = ()

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the listener."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.lower() == "localhost"
        return address in LOOPBACK_V4 if address.version == 4 else address == LOOPBACK_V6


class AdmissionSettings(Table):
    """`[admission]`: the queue in front of the slots, and when an abandoned slot is reused."""

    max_queue: Count = 256
    max_queue_per_tenant: Count = 64
    max_queue_bytes: Bytes = 268435456
    queue_timeout_s: Seconds = 60
    batch_queue_timeout_s: Seconds = 600
    """The same for batch requests, which let interactive requests go first."""
    affinity_max_wait_ms: MillisecondsOrZero = 50
    quarantine_max_s: Seconds = 120
    retry: Literal["before-first-byte", "off"] = "before-first-byte"
    store: Annotated[Text, Hidden()] = "memory"  # a store's URL can carry a password
    on_store_loss: Literal["local-share", "refuse"] = "local-share"
    lease_ttl_s: Seconds = 10


class StreamingSettings(Table):
    """`[streaming]`: keep-alives, and buffers for clients that read slowly."""

    keepalive: Literal["comment", "chunk", "off"] = "comment"
    keepalive_interval_s: Seconds = 15
    terminal_grace_s: Seconds = 0.25
    stream_buffer_bytes: StreamBytes = 4194304
    stream_buffers_total_bytes: StreamBytes = 536870912
    client_stall_timeout_s: Seconds = 60
    merge: Literal["backlog", "never"] = "backlog"


class TimeoutsSettings(Table):
    """`[timeouts]`: how long a backend may take for each step of a request."""

    connect_s: Seconds = 5
    first_byte_s: Seconds = 600
    idle_s: Seconds = 120
    total_s: Seconds = 3600


class UsageSettings(Table):
    """`[usage]`: where usage records are stored."""

    store: Annotated[UsageStore, Hidden()] = SQLITE_DEFAULT  # a store's URL can carry a password

    @property
    def sqlite_file(self) -> Path | None:
        """The SQLite file, relative to the working folder, or None if the store is something else."""
        return Path(self.store.removeprefix(SQLITE)) if self.store.startswith(SQLITE) else None

    @property
    def postgresql_url(self) -> str | None:
        """The URL of the PostgreSQL database, secrets included, or None if the store is something else."""
        return None if self.store == "none" or self.sqlite_file is not None else self.store

    @property
    def place(self) -> str:
        """The store as text without secrets: a URL is shown without its user, password and parameters."""
        if self.store == "none":
            return "nowhere"
        if self.sqlite_file is not None:
            return f"the file {self.sqlite_file}"
        url = urlsplit(self.store)
        return f"postgresql://{url.netloc.rpartition('@')[2]}{url.path}"
