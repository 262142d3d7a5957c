"""The HTTP exchange with a client: its context, its body, its errors."""
