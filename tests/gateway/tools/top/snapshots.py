"""Recorded documents of gateways, and the snapshots made of them."""

from __future__ import annotations

from typing import Any

from slotgate.gateway.tools.top.snapshot import Snapshot, of_event

BACKENDS: list[dict[str, Any]] = [
    {
        "name": "gpu0",
        "state": "ready",
        "reason": "",
        "slots": {
            "total": 6,
            "idle": 2,
            "leased": 2,
            "quarantined": 1,
            "quarantined_oldest_s": 12.4,
            "foreign": 1,
        },
        "cells": [
            {"state": "generating", "tenant": "team-a", "age_s": 3.1, "request": "r1", "tokens": 120},
            {"state": "prefill", "tenant": "team-b", "age_s": 0.4},
            {"state": "quarantined", "age_s": 12.4},
            {"state": "foreign"},
            {"state": "idle"},
            {"state": "idle"},
        ],
    },
    {
        "name": "gpu1",
        "state": "loading",
        "reason": "loading its model",
        "slots": {"total": 2, "idle": 2, "leased": 0, "quarantined": 0, "foreign": 0},
    },
]
STATUS: dict[str, Any] = {
    "backends": BACKENDS,
    "queue": {"depth": 5, "by_tenant": {"team-a": 4, "team-b": 1}, "oldest_s": 8.25},
    "tenants": [
        {"name": "team-a", "leases": 1, "queued": 4},
        {"name": "team-b", "leases": 1, "queued": 1},
        {"name": "asleep", "leases": 0, "queued": 0},
    ],
}


def request(number: int, outcome: str = "ok", **facts: object) -> dict[str, Any]:
    return {
        "id": f"request-{number:04d}-with-a-long-id",
        "tenant": "team-a",
        "model": "qwen3-30b-a3b-instruct",
        "backend": "gpu0",
        "outcome": outcome,
        "code": None,
        "status": 200,
        "queue_ms": 120.0,
        "ttft_ms": 480.0,
        "total_ms": 4000.0,
        "prompt_tokens": 30,
        "cached_tokens": 0,
        "completion_tokens": 210,
        "age_s": float(number),
        **facts,
    }


LIVE = [
    request(1, "running", total_ms=3100.0, completion_tokens=120),
    request(2, "running", ttft_ms=None, total_ms=900.0, tenant="team-b", completion_tokens=0),
    request(3, "queued", queue_ms=None, ttft_ms=None, total_ms=8250.0, completion_tokens=0),
]
ENDED = [
    request(4),
    request(5, "client_gone", status=499, total_ms=1500.0),
    request(6, "error", code="upstream_truncated", status=502, ttft_ms=None, total_ms=700.0),
]
FRAME: dict[str, Any] = {
    **STATUS,
    "full": True,
    "live": LIVE,
    "ended": ENDED,
    "rates": {"tokens_per_s": 84.2},
    "draining": False,
}


def shown() -> Snapshot:
    return of_event(FRAME, None)
