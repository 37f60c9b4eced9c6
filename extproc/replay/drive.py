"""A journal run through the balancer again: does the same come out, and what would another policy have chosen?

Decisions are compared whole as long as the state is surely that of then. It is from a run's beginning on. Where the
beginning is gone (its file was the oldest, and went), or lines were lost or are damaged, it only comes near to it as
nodes report and requests end: prefixes, rates and turns remember for long. So decisions behind such a place are not
compared until the next run begins; how many of them went to the same node is told for itself. In any case requests go
where the journal says, whatever is decided here: one decision that differs does not spoil those behind it.

Of requests that wait the journal says when each goes, not when it was looked at in vain. So what is compared is whether
it goes at that moment, behind those that came before it by turn and did not go; not whether it could have gone sooner.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.core.snapshot import KvBlocksTold, NodeLeft, NodeReported
from extproc.journal import lines, peerlines
from extproc.journal.lineform import unpacked
from extproc.journal.lines import Decided, decided_of, request_of
from extproc.replay.admitted import AdmittedLines
from extproc.replay.bounds import settings_of
from extproc.replay.follow import Again, Follower, Goes
from extproc.replay.names import Names
from extproc.replay.other import Other
from extproc.replay.read import OtherFormat, Read, Unread, open_journal
from extproc.replay.result import Doubt, Replayed, Tally

PROGRESS_LINES: Final = 500


def run(path: Path, other: Other | None, progress: Callable[[int, int], None]) -> Replayed | Fault:
    """Replay a whole journal. `progress` is told the bytes read and those there are. Raises for no content of files."""
    journal = open_journal(path)
    if isinstance(journal, Fault):
        return journal
    replay = Replay(other)
    for number, read in enumerate(journal):
        replay.take(read)
        if number % PROGRESS_LINES == 0:
            progress(read.bytes_read, journal.bytes_total)
    progress(journal.bytes_total, journal.bytes_total)
    return replay.result(journal.files)


class Replay:
    """Takes a journal's lines in their order and drives a balancer by them. Raises for no line."""

    def __init__(self, other: Other | None = None, goes: Goes | None = None) -> None:
        self._other = other
        self._told_who_goes = goes
        self._tally = Tally()
        self._balancer: Follower | None = None
        """`None`: no first line that can be used has come."""
        self._headless_told = False
        """No line can be used until the next first line, and why is told."""
        self._head: lines.Head | None = None
        self._latest_s = 0.0
        """The time of the line before, of those that have one."""
        self._names = Names()
        self._doubt: Doubt | None = None
        self._unreadable: Fault | None = None
        """The line before; it may be the last of its run."""
        self._admitted = AdmittedLines()

    @property
    def balancer(self) -> Balancer | None:
        """What the lines so far have made of it; `None`: no run that can be read has begun."""
        return self._balancer

    def take(self, read: Read) -> None:
        """Take the next line."""
        where, line = read.where, read.line
        self._tally.lines += not isinstance(line, Unread)
        if self._unreadable is not None:
            if isinstance(line, OtherFormat) or (isinstance(line, lines.Head) and line.begins):
                self._tally.cut += 1
            else:
                self._damaged(self._unreadable)
            self._unreadable = None
        match line:
            case OtherFormat():
                self._begin_other(where, line)
            case lines.Head():
                self._begin(where, line)
            case Unread(fault=unread):
                self._damaged(unread)
            case _ if self._headless_told:
                self._tally.unread += 1
            case Fault():
                self._unreadable = line
            case _ if self._balancer is None:
                self._damaged(Fault(where, "the first line of a journal before it", "none that can be used"))
            case lines.Lost(lines=count):
                self._admit()
                self._tally.lines_lost += count
                self._doubt = self._doubt or Doubt.LINES_LOST
            case lines.Policy() | lines.Models():
                if (fault := self._names.take(where, line)) is not None:
                    self._damaged(fault)
            case _:
                if (fault := self._call(where, line, self._balancer)) is not None:
                    self._damaged(fault)

    def result(self, files: tuple[str, ...] = ()) -> Replayed:
        """What was found; no line may come after."""
        if self._unreadable is not None:
            self._tally.cut += 1
            self._unreadable = None
        self._admit()
        return self._tally.result(files, None if self._other is None else str(self._other))

    def _damaged(self, fault: Fault) -> None:
        self._headless_told = self._balancer is None
        self._tally.damaged(fault)
        self._doubt = self._doubt or Doubt.DAMAGED

    def _begin_other(self, where: str, head: OtherFormat) -> None:
        self._admit()
        self._tally.version(head.version)
        self._head = self._balancer = None
        self._headless_told = False
        got = f"{shown(head.format)}, of extproc {shown(head.version)}"
        self._damaged(Fault(f"{where}: format", f"{lines.FORMAT}", got))

    def _begin(self, where: str, head: lines.Head) -> None:
        before, self._head = self._head, head
        self._names = Names()
        self._headless_told = False
        self._tally.version(head.version)
        same_run = before is not None and before.run == head.run and self._balancer is not None and not head.begins
        if same_run and before is not None:
            if head.part != before.part + 1:
                self._doubt = self._doubt or Doubt.FILE_MISSING
            return
        self._admit()
        self._tally.runs += 1
        self._doubt = None if head.begins else Doubt.BEGINNING_GONE
        settings = settings_of(where, head)
        if isinstance(settings, Fault):
            self._balancer = None
            self._damaged(settings)
        else:
            self._balancer = Follower(settings, head.started_s, self._told_who_goes)
            self._latest_s = head.started_s

    def _call(self, where: str, line: lines.Call, balancer: Follower) -> Fault | None:
        """Make one call again; or what is wrong with it."""
        if not isinstance(line, lines.Recounted):
            before_s, self._latest_s = self._latest_s, line.now_s
            if line.now_s < before_s:
                return Fault(f"{where}: now_s", f"no time before {before_s}, the line before", f"{line.now_s}")
        try:
            if not isinstance(line, lines.Admitted) and not self._admitted.complete:
                self._admit()
                if self._doubt is None:
                    self._damaged(Fault(where, "the rest of the call before", "another call"))
            return self._call_again(where, line, balancer)
        except Exception as error:  # noqa: BLE001 - a hostile line may break any rule of the core
            return _broken(where, error)

    def _call_again(self, where: str, line: lines.Call, balancer: Follower) -> Fault | None:
        match line:
            case lines.Reported():
                snapshot = self._names.snapshot(where, line)
                if isinstance(snapshot, Fault):
                    return snapshot
                balancer.observe(NodeReported(snapshot), line.now_s)
            case lines.Left(now_s=now_s):
                balancer.observe(NodeLeft(line.node_id, line.boot_id), now_s)
            case lines.KvBlocks(now_s=now_s):
                stored, removed = unpacked(line.stored), unpacked(line.removed)
                balancer.observe(KvBlocksTold(line.node_id, line.boot_id, line.everything, stored, removed), now_s)
            case peerlines.PeerWord() | peerlines.PeerGone() | peerlines.Placed():
                balancer.peer(peerlines.event_of(line), line.now_s)
            case lines.Routed():
                policy = self._names.policy(where, line.policy)
                if isinstance(policy, Fault):
                    return policy
                if balancer.is_open(line.request.request_id):
                    wanted = "the id of no request that is open"
                    return Fault(f"{where}: request.request_id", wanted, shown(line.request.request_id))
                self._route(where, line, policy, balancer)
            case lines.Admitted() | lines.Drained():
                return self._waited(where, line, balancer)
            case lines.Rehearsed():
                policy = self._names.policy(where, line.policy)
                if isinstance(policy, Fault):
                    return policy
                self._rehearse(where, line, policy, balancer)
            case lines.Uninspected():
                return self._uninspected(where, line, balancer)
            case lines.Recounted(request=request):
                if balancer.tenant_of(request.request_id) not in (None, request.tenant):
                    return Fault(f"{where}: request.tenant", "the one that waits", shown(request.tenant))
                balancer.recount(request_of(line))
            case lines.FirstToken(now_s=now_s, request_id=request_id):
                balancer.first_token(request_id, now_s)
            case lines.Served(now_s=now_s, request_id=request_id):
                balancer.served(request_id, line.host, now_s)
            case lines.StreamLeft(now_s=now_s, request_id=request_id):
                balancer.leave(request_id, now_s)
            case lines.Finished(now_s=now_s, request_id=request_id):
                balancer.finish(request_id, now_s)
            case lines.Told(now_s=now_s, answered=answered):
                balancer.answered(answered, now_s)
            case lines.Ticked(now_s=now_s):
                balancer.tick(now_s)
                if self._doubt is not None:
                    balancer.drop_expired(now_s)
            case _:
                assert_never(line)
        return None

    def _route(self, where: str, line: lines.Routed, policy: RoutingPolicy, balancer: Follower) -> None:
        request = request_of(line)
        recorded, now_s = line.decided, line.now_s
        if self._other is not None and recorded is not None:
            other = self._other.of(policy)
            would_be = _attempt(lambda: balancer.would_route(request, other, now_s), request.model)
            if would_be is not None:
                self._tally.beside(recorded, would_be)
        got = _attempt(lambda: balancer.follow(request, policy, now_s, recorded), request.model)
        self._tally.decided(where, request.request_id, recorded, got, self._doubt)

    def _rehearse(self, where: str, line: lines.Rehearsed, policy: RoutingPolicy, balancer: Follower) -> None:
        """No other policy stands beside it: by what was decided nothing went anywhere."""
        request = request_of(line)
        got = _attempt(lambda: balancer.follow_rehearsed(request, policy, line.now_s), request.model)
        self._tally.decided(where, request.request_id, line.decided, got, self._doubt)

    def _uninspected(self, where: str, line: lines.Uninspected, balancer: Follower) -> Fault | None:
        policy = None if line.policy is None else self._names.policy(where, line.policy)
        if isinstance(policy, Fault):
            return policy
        asked = (line.request_id, line.trace_id, line.now_s, line.decided, policy, line.subset)
        got = _attempt(lambda: balancer.follow_uninspected(*asked))
        self._tally.decided(where, line.request_id, line.decided, got, self._doubt)
        return None

    def _waited(self, where: str, line: lines.Waited, balancer: Follower) -> Fault | None:
        """Take what became of one who waited; or what is wrong with it."""
        if isinstance(line, lines.Admitted):
            if (misplaced := self._admitted.misplaced(where, line)) is not None:
                self._admit()
                if self._doubt is None:
                    return misplaced
            self._admitted.follow(line)
        request_id, decided, fault = line.request_id, line.decided, None
        waits = balancer.waits(request_id) and request_id not in self._admitted
        if decided.queued is not None:
            fault = Fault(f"{where}: decided", "the end of its waiting", "that it waits")
        elif not waits and self._doubt is None:
            fault = Fault(f"{where}: request_id", "the id of one that waits", shown(request_id))
        elif not waits:
            self._tally.decided(where, request_id, decided, None, self._doubt)
        elif isinstance(line, lines.Drained):
            self._again(where, line, balancer.follow_drained(line))
        else:
            self._admitted.keep(where, line)
        if self._admitted.complete:
            self._admit()
        return fault

    def _admit(self) -> None:
        """Decide again about those who were admitted in one call, as far as its lines are here."""
        admitted, balancer = self._admitted.take(), self._balancer
        if admitted and balancer is not None:
            other = None if self._other is None else self._other.of
            try:
                found = balancer.follow_admitted([one.line for one in admitted], admitted[0].line.now_s, other)
            except Exception as error:  # noqa: BLE001 - as above
                self._damaged(_broken(admitted[0].where, error))
                return
            for one, again in zip(admitted, found, strict=True):
                self._again(one.where, one.line, again)

    def _again(self, where: str, line: lines.Waited, again: Again) -> None:
        """It was decided again about one who waited."""
        own, would_be = (None if one is None else decided_of(one) for one in again)
        if self._other is not None and would_be is not None:
            self._tally.beside(line.decided, would_be)
        self._tally.decided(where, line.request_id, line.decided, own, self._doubt)


def _broken(where: str, error: Exception) -> Fault:
    return Fault(where, "what a balancer can take", f"{type(error).__name__}: {error}"[:200])


def _attempt(decide: Callable[[], Decision], model_told: str | None = None) -> Decided | None:
    """What is decided; `None` where the balancer raises, as it may for hostile values, or once did for ours."""
    try:
        return decided_of(decide(), model_told)
    except Exception:  # noqa: BLE001 - compared like any other outcome
        return None
