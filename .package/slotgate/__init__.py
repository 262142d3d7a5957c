"""slotgate: a streaming gateway in front of llama-server processes.

Everything that is installed lives under this one name, so that it cannot collide with a `gateway` or
`middleware` package of the project that uses slotgate. Of these names, `slotgate.testing` is public; the
command line is the other public interface.
"""
