"""Mutual TLS of an Istio mesh, for clusters that Istio does not make itself."""

from typing import Final

from extproc.render.parts import Part, any_of

SECRETS_CLUSTER: Final = "sds-grpc"
"""In the bootstrap of every Envoy that Istio starts: where its certificates come from."""

# What Envoys of the mesh offer, so that the other side's takes the connection for one of the mesh and not for the
# application's own TLS.
_ALPN_HTTP1: Final = ("istio-http/1.1", "istio", "http/1.1")
_ALPN_HTTP2: Final = ("istio-h2", "istio", "h2")


def mesh_socket(identities: str, *, http2: bool) -> Part:
    """`transport_socket` with the workload's own certificate, towards those whose identity begins with `identities`."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": any_of(
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context={
                "alpn_protocols": list(_ALPN_HTTP2 if http2 else _ALPN_HTTP1),
                "tls_certificate_sds_secret_configs": [_secret("default")],
                "combined_validation_context": {
                    "default_validation_context": {
                        "match_typed_subject_alt_names": [{"san_type": "URI", "matcher": {"prefix": identities}}]
                    },
                    "validation_context_sds_secret_config": _secret("ROOTCA"),
                },
            },
        ),
    }


def _secret(name: str) -> Part:
    source = {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": SECRETS_CLUSTER}}],
        "set_node_on_first_message_only": True,
    }
    return {
        "name": name,
        "sds_config": {"api_config_source": source, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    }
