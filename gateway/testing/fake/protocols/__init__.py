"""The endpoints of llama-server: how requests are read and answers are formatted."""
