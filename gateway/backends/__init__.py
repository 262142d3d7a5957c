"""The state of each llama-server, and the models that it serves."""
