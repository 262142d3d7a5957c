"""`slotgate ci`: a gateway with a stand-in for llama-server, for one run of end-to-end tests.

run.py                the run, from start to exit code
stand_in.py           the stand-ins that the gateway can have behind it
verdict.py            the requests that count as failures
control.py            the HTTP interface by which a test controls the scripted llama-server
"""
