"""What users put into their tests: the scripted llama-server, cassettes, `slotgate ci`, the pytest plugin."""
