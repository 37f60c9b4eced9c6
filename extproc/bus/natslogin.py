"""What the files of `nats` settings make of a connection: TLS, and who we are to the server."""

import re
import ssl
from base64 import b32decode
from binascii import crc_hqx
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from extproc.bus.settings import NatsSettings
from extproc.bus.troubles import said
from extproc.core.settings import Fault
from extproc.peers.pemfiles import certificates_of, identity_of
from extproc.peers.reloaded import content_of
from extproc.peers.tlssettings import ClientTls

SECRET_CHARS_MAX = 1024
"""Of a password, token or seed: the server takes lines of 4 KiB."""
CREDENTIALS_CHARS_MAX = 3000
"""Of a JWT, for the same reason."""
CLIENT = ("nkeys", "extproc.bus.natsconnection")
"""Modules that need the extra."""
EXTRA = Fault("nats", "the extra `nats` (pip install '.[nats]' in a clone)", "an installation without it")
_SECRET = f"a file whose first line is 1 to {SECRET_CHARS_MAX} characters"
_SEED = "a file with the seed of a user's nkey: SU and 56 more letters and digits"
_CREDENTIALS = "a file with a user's JWT and the seed of its nkey, as nsc writes it"
_SEED_LINE = re.compile(r"SU[A-Z2-7]{56}")
_JWT_PART = re.compile(r"-----BEGIN NATS USER JWT-----\s+([A-Za-z0-9_.=-]+)\s")
_SEED_PART = re.compile(r"-----BEGIN USER NKEY SEED-----\s+([A-Z2-7]+)\s")


def faults(settings: NatsSettings) -> list[Fault]:
    """Why no server could be reached with these settings as their files are now; empty: for no such reason."""
    options = options_of(settings)
    return options if isinstance(options, list) else []


def options_of(settings: NatsSettings) -> dict[str, Any] | list[Fault]:
    """What `nats.connect` is told beside the server, read from the files anew; or their faults."""
    if (missing := _missing()) is not None:
        return [missing]
    options: dict[str, Any] = {}
    found: list[Fault] = []
    for more in (_tls(settings), _login(settings)):
        if isinstance(more, list):
            found += more
        else:
            options |= more
    return found or options


def login_of(settings: NatsSettings) -> str:
    """Who we are to the servers, for people: never a secret, but where it stands."""
    if settings.password_file is not None:
        return f"user {settings.user}, password in {settings.password_file}"
    for what, path in (
        ("token", settings.token_file),
        ("nkey", settings.nkey_file),
        ("credentials", settings.credentials_file),
    ):
        if path is not None:
            return f"{what} in {path}"
    return "no login"


def _missing() -> Fault | None:
    """Whether the client is there and loads; that it is there says little."""
    if find_spec("nats") is None or find_spec("nkeys") is None:
        return EXTRA
    try:
        for name in CLIENT:
            import_module(name)
    except Exception as error:  # noqa: BLE001 - of any of its modules, or those that they need
        return replace(EXTRA, got=f"one that does not load: {said(error)}")
    return None


def _tls(settings: NatsSettings) -> dict[str, Any] | list[Fault]:
    if settings.tls is not None:
        return _own_tls(settings.tls)
    if settings.is_tls:
        return {"tls": ssl.create_default_context()}
    return {}


def _own_tls(tls: ClientTls) -> dict[str, Any] | list[Fault]:
    authorities = certificates_of(tls.ca, "nats.tls.ca")
    found = [authorities] if isinstance(authorities, Fault) else []
    if tls.certificate is not None and tls.key is not None:
        identity = identity_of(tls.certificate, tls.key, "nats.tls")
        found += identity if isinstance(identity, list) else []
    if found or isinstance(authorities, Fault):
        return found
    context = ssl.create_default_context(cadata=authorities.decode("ascii"))
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:  # replaced this very moment
            return [Fault("nats.tls.certificate", "a certificate and its key", f"{tls.certificate}: {error}")]
    return {"tls": context} | ({} if tls.server_name is None else {"tls_hostname": tls.server_name})


def _login(settings: NatsSettings) -> dict[str, Any] | list[Fault]:
    if settings.password_file is not None:
        password = _first_line(settings.password_file, "nats.password_file")
        return [password] if isinstance(password, Fault) else {"user": settings.user, "password": password}
    if settings.token_file is not None:
        token = _first_line(settings.token_file, "nats.token_file")
        return [token] if isinstance(token, Fault) else {"token": token}
    if settings.nkey_file is not None:
        seed = _first_line(settings.nkey_file, "nats.nkey_file")
        if isinstance(seed, str) and not _is_seed(seed):
            seed = Fault("nats.nkey_file", _SEED, f"{settings.nkey_file}: something else")
        return [seed] if isinstance(seed, Fault) else {"nkeys_seed_str": seed}
    if settings.credentials_file is not None:
        return _credentials(settings.credentials_file)
    return {}


def _first_line(path: Path, setting: str) -> str | Fault:
    content = content_of(path, setting, _SECRET)
    if isinstance(content, Fault):
        return content
    try:
        line = content.decode().partition("\n")[0].removesuffix("\r")
    except UnicodeDecodeError:
        return Fault(setting, _SECRET, f"{path}: no text in UTF-8")
    if not 0 < len(line) <= SECRET_CHARS_MAX:
        return Fault(setting, _SECRET, f"{path}: {len(line)}")
    return line


def _credentials(path: Path) -> dict[str, Any] | list[Fault]:
    content = content_of(path, "nats.credentials_file", _CREDENTIALS)
    if isinstance(content, Fault):
        return [content]
    text = content.decode("utf-8", "replace") + "\n"
    jwt, seed = _JWT_PART.search(text), _SEED_PART.search(text)
    if jwt is None or seed is None or len(jwt[1]) > CREDENTIALS_CHARS_MAX or not _is_seed(seed[1]):
        return [Fault("nats.credentials_file", _CREDENTIALS, f"{path}: something else")]
    from nats.aio.client import RawCredentials  # noqa: PLC0415 - the extra may be missing

    # Written anew, as the client's own reader searches some files without end.
    written = (
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed[1]}\n------END USER NKEY SEED------\n"
    )
    return {"user_credentials": RawCredentials(written)}


def _is_seed(seed: str) -> bool:
    """The last two of its 36 bytes are a CRC of the others; the client does not look at it."""
    if not _SEED_LINE.fullmatch(seed):
        return False
    whole = b32decode(f"{seed}======")
    return crc_hqx(whole[:-2], 0) == int.from_bytes(whole[-2:], "little")
