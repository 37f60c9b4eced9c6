"""Certificates for tests, made by an authority of the test's own."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
FUTURE = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def written(self, folder: Path, name: str) -> dict[str, str]:
        """The settings that name both files."""
        paths = {"certificate": folder / f"{name}.crt", "key": folder / f"{name}.key"}
        paths["certificate"].write_bytes(self.certificate)
        paths["key"].write_bytes(self.key)
        return {setting: str(path) for setting, path in paths.items()}


class Authority:
    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.certificate = self._ca.cert_pem.bytes()

    def written(self, folder: Path, name: str = "ca") -> str:
        path = folder / f"{name}.crt"
        path.write_bytes(self.certificate)
        return str(path)

    def issue(self, *names: str, common_name: str | None = None, expired: bool = False) -> Pair:
        until = PAST if expired else None
        issued = self._ca.issue_cert(*names, common_name=common_name, not_after=until)
        return Pair(b"".join(part.bytes() for part in issued.cert_chain_pems), issued.private_key_pem.bytes())

    def issue_odd(self, common_name: str, *alternative: x509.GeneralName) -> Pair:
        """With any alternative names, or with none at all."""
        authority = x509.load_pem_x509_certificate(self.certificate)
        signing = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
        builder = x509.CertificateBuilder(authority.subject, subject, key.public_key(), 7, PAST, FUTURE)
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
        return Pair(
            builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def issue_uri(self, name: str) -> Pair:
        return self.issue_odd("", x509.UniformResourceIdentifier(name))


def channel(address: str, authority: Authority | None, own: Pair | None = None, name: str = "") -> grpc.aio.Channel:
    """A connection of its own to a port, which must have a certificate of this authority; `None`: plain text."""
    options: list[tuple[str, str | int]] = [("grpc.use_local_subchannel_pool", 1)]
    if authority is None:
        return grpc.aio.insecure_channel(address, options=options)
    pair = (None, None) if own is None else (own.key, own.certificate)
    if name:
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority.certificate, *pair), options=options)
