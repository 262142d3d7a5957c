"""llama-servers that the gateway runs itself: start, watch, load, unload."""
