"""A program to supervise. It imitates the life of a llama-server, with bad habits.

    python child_program.py HABIT ... --host HOST --port PORT [--alias NAME]

Habits: `crash` writes a line and exits 1 at once; `silent` never listens; `loading` answers 503 for ever;
`stubborn` ignores SIGTERM; `mute` takes work and never answers; `parent` starts a process that outlives it
and holds its output open. Without a habit it serves /health without a key and /props with its key, as
llama-server does. It imports only small modules of the standard library, because tests start it often.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys


def main(arguments: list[str]) -> int:
    if "--help" in arguments:
        say("-cram, --cache-ram N   maximum cache size")
        return 0
    if "crash" in arguments:
        say(f"failed to load the model, key {os.environ.get('LLAMA_API_KEY')}")
        return 1
    if "stubborn" in arguments:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in arguments:
        grandchild = subprocess.Popen([sys.executable, "-I", __file__, "silent", "stubborn"])
        say(f"grandchild {grandchild.pid}")
    if "silent" in arguments:
        say("silent")
        signal.pause()
    serve(listen(arguments), loading="loading" in arguments, mute="mute" in arguments)
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def listen(arguments: list[str]) -> socket.socket:
    host, port = (arguments[arguments.index(option) + 1] for option in ("--host", "--port"))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    listener.listen()
    say("listening")
    return listener


def serve(listener: socket.socket, loading: bool, mute: bool) -> None:
    unanswered = []
    while True:
        connection, _ = listener.accept()
        request = connection.recv(65536)
        if mute and request.startswith(b"POST"):
            unanswered.append(connection)
            continue
        with connection:
            status = "503 Loading" if loading else answer(request)
            connection.sendall(
                f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )


def answer(request: bytes) -> str:
    key = os.environ.get("LLAMA_API_KEY", "")
    is_open = request.startswith(b"GET /health ")
    return "200 OK" if is_open or f": Bearer {key}\r\n".encode() in request else "401 Unauthorized"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
