"""`slotgate bench`: puts load on a running gateway, and reports its latencies and rates.

run.py        the concurrent clients
request.py    one request and its times
figures.py    the figures of all requests
"""

from __future__ import annotations

from slotgate.gateway.tools.bench.figures import BenchFigures
from slotgate.gateway.tools.bench.request import BenchRequest
from slotgate.gateway.tools.bench.run import BenchOptions, run_bench

__all__ = ["BenchFigures", "BenchOptions", "BenchRequest", "run_bench"]
