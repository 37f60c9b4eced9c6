"""Certificates and keys in PEM files, checked before gRPC gets them: it starts with any, and fails each handshake."""

import ssl
from pathlib import Path

from msgspec import Struct

from extproc.core.settings import Fault
from extproc.peers.reloaded import content_of

_CERTIFICATE = "a PEM file of certificates"
_KEY = "a PEM file of an unencrypted private key"


class Identity(Struct, frozen=True):
    """A certificate chain and its private key, in PEM."""

    certificate: bytes
    key: bytes


def certificates_of(path: Path, setting: str) -> bytes | Fault:
    """A PEM file's certificates; or the fault of the setting that names the file."""
    content = content_of(path, setting, _CERTIFICATE)
    if isinstance(content, Fault):
        return content
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return Fault(setting, _CERTIFICATE, f"{path}: no certificate that can be read")
    return content


def identity_of(certificate: Path, key: Path, setting: str) -> Identity | list[Fault]:
    """A certificate and the key that belongs to it; or the faults of `setting`.certificate and `setting`.key."""
    chain = certificates_of(certificate, f"{setting}.certificate")
    private = content_of(key, f"{setting}.key", _KEY)
    if isinstance(chain, Fault) or isinstance(private, Fault):
        return [fault for fault in (chain, private) if isinstance(fault, Fault)]
    try:
        # An encrypted key must not ask for its password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return [Fault(f"{setting}.key", f"the key of {certificate}", f"{key}: the key of another certificate")]
        return [Fault(f"{setting}.key", _KEY, f"{key}: no such key that can be read")]
    except OSError as error:
        return [Fault(f"{setting}.key", _KEY, f"{key}: {error.strerror}")]
    return Identity(chain, private)
