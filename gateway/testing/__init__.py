"""Support for tests of users: the scripted llama-server, cassettes, `slotgate ci` and the pytest plugin."""
