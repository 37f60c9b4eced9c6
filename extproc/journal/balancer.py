"""The journal of `serve`: each call of the balancer that changes or decides something, as `extproc replay` reads it.

The same calls give the same decisions, so the calls are all that has to be kept. Each is made a line and kept with
others; a thread writes them, every second or 64 KiB. All calls of a request take 13 µs together (60 µs for a prompt of
100,000 tokens) beside the balancer's own work, 1 µs more if it has a tenant and 4 µs if it waits; a node's report takes
5 µs, and another router's word about 100 nodes 20 µs and 6 KB.
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from msgspec.structs import replace

from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.outcome import Answered
from extproc.core.peershares import PeerEvent
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings, Fault
from extproc.core.snapshot import KvBlocksTold, NodeEvent, NodeReported, Observation, ServedModel
from extproc.journal import lines, peerlines, place
from extproc.journal.file import Chunk, JournalFile
from extproc.journal.lineform import packed
from extproc.journal.lines import LINE_BYTES_MAX, decided_of, encode
from extproc.journal.tenants import TenantNames

CHUNK_BYTES: Final = 64 * 1024
CHUNK_S: Final = 1.0
"""What is lost when the process is killed: so many bytes, or the lines of so many seconds; where nothing happens that
would write them, those since the last tick."""
NAMES_BYTES_MAX: Final = 512 * 1024
"""Lines that explain numbers, which each file repeats; over it numbers are given anew."""


class JournaledBalancer(Balancer):
    """A balancer that writes down what it is told. It decides as any other, and no fault of the journal reaches it.

    `settle` is not written: what it does is done in any case before the next call to which it matters.
    """

    def __init__(self, settings: BalancerSettings, started_s: float, file: JournalFile) -> None:
        super().__init__(settings, started_s)
        self._file = file
        self._lines: list[bytes] = []
        self._bytes = 0
        self._flushed_s = started_s
        self._numbers: dict[RoutingPolicy | tuple[ServedModel, ...], int] = {}
        self._numbers_given = 0
        self._names = b""
        self._names_before = b""
        """What was named when the first of the lines that wait was not yet written."""
        self._answering = False
        self._tenants = TenantNames(settings.quotas)

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        """See `Balancer`."""
        self._keep(now_s, self._observed, event, now_s)
        return super().observe(event, now_s)

    def peer(self, event: PeerEvent, now_s: float) -> bool:
        """See `Balancer`."""
        self._keep(now_s, peerlines.line_of, event, now_s)
        return super().peer(event, now_s)

    def route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """See `Balancer`."""
        decision = None
        try:
            decision = super().route(request, policy, now_s)
        finally:
            self._keep(now_s, self._routed, lines.Routed, request, policy, decision, now_s)
        return decision

    def rehearse(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """See `Balancer`."""
        decision = None
        try:
            decision = super().rehearse(request, policy, now_s)
        finally:
            self._keep(now_s, self._routed, lines.Rehearsed, request, policy, decision, now_s)
        return decision

    def admit(self, now_s: float) -> list[Decision]:
        """See `Balancer`."""
        try:
            decisions = super().admit(now_s)
        except Exception:
            self._keep(now_s, lines.Lost, 1)  # whom it let go before it raised is not known
            raise
        for left, decision in zip(reversed(range(len(decisions))), decisions, strict=True):
            self._keep(now_s, lines.Admitted, now_s, decision.request_id, decided_of(decision), left)
        return decisions

    def drain(self, now_s: float) -> list[Decision]:
        """See `Balancer`."""
        decisions = super().drain(now_s)
        for decision in decisions:
            self._keep(now_s, lines.Drained, now_s, decision.request_id, decided_of(decision))
        return decisions

    def route_uninspected(
        self,
        request_id: str,
        trace_id: str,
        now_s: float,
        policy: RoutingPolicy | None = None,
        subset: tuple[str, ...] | None = None,
    ) -> Decision:
        """See `Balancer`."""
        decision = None
        try:
            decision = super().route_uninspected(request_id, trace_id, now_s, policy, subset)
        finally:
            self._keep(now_s, self._uninspected, request_id, trace_id, policy, subset, decision, now_s)
        return decision

    def recount(self, request: InferenceRequest) -> None:
        """See `Balancer`."""
        self._keep(self._flushed_s, self._recounted, request)
        super().recount(request)

    def first_token(self, request_id: str, now_s: float) -> None:
        """See `Balancer`."""
        self._keep(now_s, lines.FirstToken, now_s, request_id)
        super().first_token(request_id, now_s)

    def served(self, request_id: str, host: str, now_s: float) -> None:
        """See `Balancer`."""
        self._keep(now_s, lines.Served, now_s, request_id, host)
        super().served(request_id, host, now_s)

    def leave(self, request_id: str, now_s: float) -> None:
        """See `Balancer`."""
        self._keep(now_s, lines.StreamLeft, now_s, request_id)
        super().leave(request_id, now_s)

    def finish(self, request_id: str, now_s: float) -> None:
        """See `Balancer`."""
        if not self._answering:
            self._keep(now_s, lines.Finished, now_s, request_id)
        super().finish(request_id, now_s)

    def answered(self, answered: Answered, now_s: float) -> None:
        """See `Balancer`."""
        self._keep(now_s, lines.Told, now_s, answered)
        self._answering = True  # it finishes the request itself
        try:
            super().answered(answered, now_s)
        finally:
            self._answering = False

    def tick(self, now_s: float) -> list[str]:
        """See `Balancer`."""
        self._keep(now_s, lines.Ticked, now_s)
        self._flush(now_s)  # where nothing else happens no other call comes
        return super().tick(now_s)

    @property
    def unwritten_bytes(self) -> int:
        """Of lines that were handed to the journal's thread and are not written yet."""
        return self._file.waiting_bytes

    def close(self) -> None:
        """Have the last lines written. What is called from now on is lost."""
        self._flush(self._flushed_s)
        self._file.close()

    def _keep(self, now_s: float, make: Callable[..., lines.Line], *values: object) -> None:
        try:
            line = encode(make(*values))
            if len(line) >= LINE_BYTES_MAX:
                raise _too_long(line)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            self._file.complain(f"{type(error).__name__}: {error}")
            line = encode(lines.Lost(1))
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= CHUNK_BYTES or now_s - self._flushed_s >= CHUNK_S:
            self._flush(now_s)

    def _flush(self, now_s: float) -> None:
        self._flushed_s = now_s
        if self._lines:
            lines = self._lines
            lines.append(b"")
            self._file.put(Chunk(b"\n".join(lines), len(lines) - 1, self._names_before))
            self._lines = []
            self._bytes = 0
            self._names_before = self._names

    def _observed(self, event: NodeEvent, now_s: float) -> lines.Line:
        if isinstance(event, KvBlocksTold):
            stored, removed = packed(event.stored), packed(event.removed)
            return lines.KvBlocks(now_s, event.node_id, event.boot_id, event.everything, stored, removed)
        if not isinstance(event, NodeReported):
            return lines.Left(now_s, event.node_id, event.boot_id)
        snapshot = event.snapshot
        models = snapshot.models
        number = None if models is None else self._number(models, lambda number: lines.Models(number, models))
        return lines.Reported(now_s, lines.known_of(snapshot), number)

    def _routed(
        self,
        line: type[lines.Routed | lines.Rehearsed],
        request: InferenceRequest,
        policy: RoutingPolicy,
        decision: Decision | None,
        now_s: float,
    ) -> lines.Line:
        decided = None if decision is None else decided_of(decision, request.model)
        return line(now_s, self._number_of(policy), *self._for_line(request), decided)

    def _uninspected(
        self,
        request_id: str,
        trace_id: str,
        policy: RoutingPolicy | None,
        subset: tuple[str, ...] | None,
        decision: Decision | None,
        now_s: float,
    ) -> lines.Line:
        decided = None if decision is None else decided_of(decision)
        number = None if policy is None else self._number_of(policy)
        return lines.Uninspected(now_s, request_id, trace_id, decided, number, subset)

    def _recounted(self, request: InferenceRequest) -> lines.Line:
        return lines.Recounted(*self._for_line(request))

    def _for_line(self, request: InferenceRequest) -> tuple[InferenceRequest, bytes, bytes]:
        blocks, token_blocks = request.prompt_blocks, request.token_blocks
        if not (blocks or token_blocks or request.tenant):
            return request, b"", b""
        tenant = self._tenants.written(request.tenant)
        bare = replace(request, prompt_blocks=(), token_blocks=(), tenant=tenant)
        return bare, packed(blocks), packed(token_blocks)

    def _number_of(self, policy: RoutingPolicy) -> int:
        return self._number(policy, lambda number: lines.Policy(number, policy.model_dump(mode="json")))

    def _number(self, named: RoutingPolicy | tuple[ServedModel, ...], make: Callable[[int], lines.Line]) -> int:
        number = self._numbers.get(named)
        if number is None:
            number = self._numbers_given
            line = encode(make(number))
            if len(line) >= LINE_BYTES_MAX:
                raise _too_long(line)
            if len(self._names) + len(line) >= NAMES_BYTES_MAX:
                self._numbers.clear()
                self._names = b""
            self._numbers_given += 1
            self._numbers[named] = number
            self._names += line + b"\n"
            self._lines.append(line)
            self._bytes += len(line)
        return number


def balancer(config: Config, started_s: float, on_fault: Callable[[], None]) -> Balancer | Fault:
    """The balancer of `serve`, with a journal if the configuration says so; a fault if that cannot be written.

    `on_fault` is called, from any thread, for each fault of writing later. Whoever gets a balancer closes it.
    """
    journal = config.journal
    if journal.path is None:
        return Balancer(config, started_s)
    if (fault := place.fault_of(journal.path)) is not None:
        return fault
    run, started_at = secrets.token_hex(4), datetime.now(UTC).isoformat(timespec="seconds")
    program = version("extproc")
    settings = config.model_dump(mode="json", include=set(BalancerSettings.model_fields))

    def head(part: int) -> bytes:
        begins = part == 0
        return encode(lines.Head(lines.FORMAT, program, run, part, begins, started_at, started_s, settings))

    try:
        file = JournalFile(
            journal.path, head, on_fault, file_bytes_max=journal.file_bytes_max, files_max=journal.files_max
        )
    except (OSError, ValueError) as error:
        return place.unwritable(journal.path, error)
    return JournaledBalancer(config, started_s, file)


def close(balancer: Balancer) -> None:
    """Write what is left of the balancer's journal, if it has one."""
    if isinstance(balancer, JournaledBalancer):
        balancer.close()


def _too_long(line: bytes) -> ValueError:
    return ValueError(f"a line of {len(line)} bytes, more than {LINE_BYTES_MAX}")
