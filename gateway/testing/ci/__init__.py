"""`slotgate ci`: a gateway and something to stand behind it, for one run of somebody's end-to-end tests.

`run.py` runs it; `stand_in.py` says what may stand behind it; `verdict.py` what counts as a failure.
"""
