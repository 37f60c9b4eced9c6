"""Lines of `admit`, gathered until those of one call are together: what it decided first bears on the rest."""

from typing import NamedTuple

from extproc.core.settings import Fault
from extproc.journal.lines import Admitted


class Placed(NamedTuple):
    """A line, and where it stood."""

    where: str
    line: Admitted


class AdmittedLines:
    """The lines of one call so far."""

    def __init__(self) -> None:
        self._lines: dict[str, Placed] = {}
        self._left = 0
        """Lines of the call that are not here yet."""
        self._now_s = 0.0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lines

    @property
    def complete(self) -> bool:
        """Whether nothing more of the call comes."""
        return not self._left

    def misplaced(self, where: str, line: Admitted) -> Fault | None:
        """Why a line cannot be the next; `None`: it can."""
        if self.complete:
            return None
        if line.now_s != self._now_s:
            return Fault(f"{where}: now_s", f"{self._now_s}, as in the same call's line before", f"{line.now_s}")
        if line.left != self._left - 1:
            return Fault(f"{where}: left", f"{self._left - 1}, one less than in the line before", f"{line.left}")
        return None

    def follow(self, line: Admitted) -> None:
        """This is the next line, which may be of no use."""
        self._left, self._now_s = line.left, line.now_s

    def keep(self, where: str, line: Admitted) -> None:
        """The next line is of use; nothing is here of the same request."""
        self._lines[line.request_id] = Placed(where, line)

    def take(self) -> list[Placed]:
        """Those that were kept, whether the call is complete or not. The next line begins another."""
        lines = list(self._lines.values())
        self._lines.clear()
        self._left = 0
        return lines
