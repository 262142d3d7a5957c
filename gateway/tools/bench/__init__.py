"""`slotgate bench`: load a gateway that runs, and say how it fared.

`visit.py` is one request, `figures.py` what all of them come to, `run.py` who comes when.
"""

from slotgate.gateway.tools.bench.figures import Figures
from slotgate.gateway.tools.bench.run import BenchOptions, run_bench
from slotgate.gateway.tools.bench.visit import Visit

__all__ = ["BenchOptions", "Figures", "Visit", "run_bench"]
