"""`slotgate top`: a live view of a gateway in a terminal. It is a client of `/admin`.

feed (events, or polls once a second) -> Snapshot -> screen (rich) -> terminal
"""
