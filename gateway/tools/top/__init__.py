"""`slotgate top`: the live view in a terminal. A client of `/admin`, here or on another machine.

feed (events, or questions once a second) -> Snapshot -> screen (rich) -> terminal
"""
