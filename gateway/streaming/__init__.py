"""The bytes of one stream, from the upstream connection to the client."""
