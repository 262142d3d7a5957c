"""One HTTP exchange with a client: who asks, which error, which body."""
