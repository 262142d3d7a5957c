"""`slotgate bench`: load a gateway that runs, and say how it fared.

`request.py` is one request, `figures.py` what all of them come to, `run.py` who comes when.
"""

from slotgate.gateway.tools.bench.figures import BenchFigures
from slotgate.gateway.tools.bench.request import BenchRequest
from slotgate.gateway.tools.bench.run import BenchOptions, run_bench

__all__ = ["BenchFigures", "BenchOptions", "BenchRequest", "run_bench"]
