"""What one stream tells its router: each message, without what the router knows by now."""

from collections.abc import Mapping

from msgspec import Struct

from extproc.agent.roundtrip import RoundTrip
from extproc.agent.wire import Report, node_snapshot
from extproc.core.snapshot import SNAPSHOTS_TOGETHER_MAX, ServedModel
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, NodeSnapshot, Snapshots

MODELS_AGAIN_S = 60.0
"""A list of models that stays the same is told again after this: a router may have forgotten the node meanwhile."""
TOGETHER_BYTES_MAX = 960
"""Several reports are one message up to this sum of their lengths: it stays under 1 KiB, the least limit that a router
can be configured with."""


class Telling:
    """One stream, from its beginning.

    A list of models goes with a node's first report, and again when it or the boot has changed, when a report was not
    applied, and now and then. Most messages are quiet: an acknowledgement is asked for where the round trip is to be
    measured. Several reports are one message once the router said that it knows those.
    """

    def __init__(self) -> None:
        self._round_trip = RoundTrip()
        self._models: dict[str, _Told] = {}
        self._takes_several = False

    @property
    def takes_several(self) -> bool:
        """Whether it pays to wait for more reports."""
        return self._takes_several

    def message(self, unsent: dict[str, None], latest: Mapping[str, Report], now_s: float) -> AgentMessage:
        """The next message: of the nodes in `unsent`, of which there is one at least, and which it leaves."""
        snapshots: list[NodeSnapshot] = []
        length = 0
        for node_id in list(unsent)[: SNAPSHOTS_TOGETHER_MAX if self._takes_several else 1]:
            report = latest[node_id]
            with_models = self._wants_models(report, now_s)
            made = node_snapshot(report, now_s, self._round_trip.seconds, with_models=with_models)
            length += made.ByteSize()
            if snapshots and length > TOGETHER_BYTES_MAX:
                break
            del unsent[node_id]
            if with_models and report.snapshot.models is not None:
                self._models[node_id] = _Told(report.snapshot.boot_id, report.snapshot.models, now_s)
            snapshots.append(made)
        quiet = not self._round_trip.send((snapshots[-1].node_id, snapshots[-1].sequence), now_s)
        if len(snapshots) == 1:
            return AgentMessage(snapshot=snapshots[0], quiet=quiet)
        return AgentMessage(snapshots=Snapshots(snapshots=snapshots), quiet=quiet)

    def acknowledged(self, acknowledgement: Acknowledgement, now_s: float) -> None:
        """What the router said of a message."""
        self._round_trip.acknowledge((acknowledgement.node_id, acknowledgement.sequence), now_s)
        self._takes_several = acknowledgement.takes_several
        if acknowledgement.verdict != Acknowledgement.VERDICT_APPLIED:
            self._models.pop(acknowledgement.node_id, None)

    def _wants_models(self, report: Report, now_s: float) -> bool:
        told, snapshot = self._models.get(report.snapshot.node_id), report.snapshot
        return (
            told is None
            or told.boot_id != snapshot.boot_id
            or told.models != snapshot.models
            or now_s - told.told_s >= MODELS_AGAIN_S
        )


class _Told(Struct, frozen=True):
    boot_id: str
    models: tuple[ServedModel, ...]
    told_s: float
