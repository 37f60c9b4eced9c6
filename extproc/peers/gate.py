"""Who may call a port of ours: checked before every RPC, by the client's certificate and by its token.

That a certificate is signed by an authority of ours is checked by TLS itself, before anything comes here.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import structlog

from extproc.peers.tokens import TokenSet

LOG_INTERVAL_S = 10.0
"""Refusals for one reason are logged at most once in this time, with the number of those left out."""
SHOWN_CHARS_MAX = 200
"""What the log repeats of a peer's names."""
_BEARER = "bearer "

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # which is no generic class when it runs


class PeerGate(grpc.aio.ServerInterceptor):
    """Lets those through who have one of `names`, if there are any, and one of the tokens, if they are asked for.

    `refused` is told each refusal's reason: `name` or `token`.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        tokens: Callable[[], TokenSet] | None,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        refused: Callable[[str], None],
    ) -> None:
        self._names = frozenset(map(_spelled, names))
        self._tokens = tokens
        self._clock = clock
        self._log = log
        self._refused = refused
        self._guarded: dict[str, Handler] = {}
        self._logged_s: dict[str, float] = {}
        self._left_out = {"name": 0, "token": 0}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a method behind the gate."""
        method = handler_call_details.method
        if (guarded := self._guarded.get(method)) is None:
            handler = await continuation(handler_call_details)
            if handler is None:  # no such method; gRPC says so, and nothing of it is kept
                return None
            guarded = self._guarded[method] = _behind(self._admit, handler)
        return guarded

    async def _admit(self, context: Context) -> None:
        """Return for those who may call; end the RPC of the others."""
        if self._names:
            shown = names_of(context.auth_context())
            if not any(allowed(name, self._names) for name in shown):
                self._tell("name", context.peer(), names=ascii(sorted(shown))[:SHOWN_CHARS_MAX])
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no name of this certificate may call here")
        if self._tokens is not None and not _has_token(context, self._tokens()):
            self._tell("token", context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token that is known here is wanted")

    def _tell(self, reason: str, peer: str, **values: str) -> None:
        self._refused(reason)
        now_s = self._clock()
        if now_s - self._logged_s.get(reason, float("-inf")) < LOG_INTERVAL_S:
            self._left_out[reason] += 1
            return
        self._log.warning("peer refused", reason=reason, peer=peer, left_out=self._left_out[reason], **values)
        self._logged_s[reason] = now_s
        self._left_out[reason] = 0


def names_of(auth_context: Any) -> set[str]:
    """The names in a client's certificate: DNS names and URIs; its common name where it has no alternative names."""
    named = "peer_dns" if "x509_subject_alternative_name" in auth_context else "x509_common_name"
    # What looks like a URI there is none: an authority may sign any text as a name, and not mean a service by it.
    found = [name for name in auth_context.get(named, ()) if b"://" not in name]
    found += [name for name in auth_context.get("peer_uri", ()) if b"://" in name]  # urn:a.b is no name of a host
    return {name.decode("ascii", "backslashreplace") for name in found if name}


def allowed(name: str, names: frozenset[str]) -> bool:
    """Whether a name is one of these, or is with another first label, where `*.` stands for any."""
    name = _spelled(name)
    if name in names:
        return True
    label, _, rest = name.partition(".")
    return "://" not in name and bool(label) and f"*.{rest}" in names


def _spelled(name: str) -> str:
    """DNS names are the same in any case; URIs are not."""
    return name if "://" in name else name.lower()


def _has_token(context: Context, tokens: TokenSet) -> bool:
    metadata = context.invocation_metadata() or ()
    shown = [value for key, value in metadata if key == "authorization"]
    if len(shown) != 1 or not isinstance(shown[0], str) or not shown[0].lower().startswith(_BEARER):
        return False
    return shown[0][len(_BEARER) :] in tokens


def _behind(admit: Callable[[Context], Awaitable[None]], handler: Handler) -> Handler:
    """The same handler, called only for those who are admitted. gRPC tells generators and coroutines apart."""
    made, inner = _kind(handler)
    if inspect.isasyncgenfunction(inner):

        async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
            await admit(context)
            async with contextlib.aclosing(inner(request, context)) as replies:
                async for reply in replies:
                    yield reply

        behaviour: Any = streamed
    else:

        async def called(request: Any, context: Context) -> Any:
            await admit(context)
            return await inner(request, context)

        behaviour = called
    guarded: Handler = made(behaviour, handler.request_deserializer, handler.response_serializer)
    return guarded


def _kind(handler: Handler) -> tuple[Callable[..., Any], Any]:
    """How to make such a handler, and what it calls."""
    match handler.request_streaming, handler.response_streaming:
        case True, True:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream
        case True, False:
            return grpc.stream_unary_rpc_method_handler, handler.stream_unary
        case False, True:
            return grpc.unary_stream_rpc_method_handler, handler.unary_stream
        case _:
            return grpc.unary_unary_rpc_method_handler, handler.unary_unary
