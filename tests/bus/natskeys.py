"""Keys of NATS users, and the JWTs by which an operator vouches for accounts and an account for its users."""

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

import nkeys  # type: ignore[import-untyped]

USER, ACCOUNT, OPERATOR = nkeys.PREFIX_BYTE_USER, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_OPERATOR


@dataclass(frozen=True)
class Key:
    seed: str
    public: str

    def sign(self, what: bytes) -> bytes:
        signed: bytes = nkeys.from_seed(bytearray(self.seed.encode())).sign(what)
        return signed


def key(prefix: int = USER) -> Key:
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return Key(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def jwt(by: Key, subject: Key, name: str, claims: dict[str, Any]) -> str:
    """As nsc makes one."""
    told = {"iat": 1700000000, "iss": by.public, "name": name, "sub": subject.public, "nats": claims | {"version": 2}}
    told["jti"] = base64.b32encode(hashlib.sha256(_json(told)).digest()).decode().rstrip("=")
    signed = b".".join(map(_base64, (_json({"typ": "JWT", "alg": "ed25519-nkey"}), _json(told))))
    return (signed + b"." + _base64(by.sign(signed))).decode()


@dataclass(frozen=True)
class Operated:
    """A server's configuration with an operator, and the .creds file of a user whom it knows."""

    config: str
    credentials: str


def operated() -> Operated:
    operator, account, user = key(OPERATOR), key(ACCOUNT), key()
    limits = {"subs": -1, "data": -1, "payload": -1}
    account_limits = limits | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    account_jwt = jwt(operator, account, "fleet", {"type": "account", "limits": account_limits})
    operator_jwt = jwt(operator, operator, "ours", {"type": "operator"})
    user_jwt = jwt(account, user, "router", {"type": "user", "pub": {}, "sub": {}} | limits)
    config = f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {account.public}: {account_jwt} }}\n"
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return Operated(config, credentials)


def _base64(what: bytes) -> bytes:
    return base64.urlsafe_b64encode(what).rstrip(b"=")


def _json(what: dict[str, Any]) -> bytes:
    return json.dumps(what, separators=(",", ":")).encode()
