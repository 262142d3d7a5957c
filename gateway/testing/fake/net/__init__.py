"""Sockets, HTTP and time of the scripted llama-server."""
