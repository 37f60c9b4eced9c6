"""Which other routers are there."""

from extproc.core.exchangesettings import ExchangeSettings

LEFT_KEPT_MAX = 100
"""Routers that have left and are remembered for a while: words of theirs may still be on their way."""

EVER_S = 600.0
"""So long ends of answers are kept for a router that is away."""


class Routers:
    """Those that were heard lately, by whatever they said; and those that have said goodbye, for as long."""

    def __init__(self, settings: ExchangeSettings, key: str = "") -> None:
        self._key = key
        self._silence_s = settings.silence_s
        self._peers_max = settings.peers_max
        self._heard: dict[str, _Heard] = {}
        self._left: dict[str, float] = {}
        self._ever: dict[str, float] = {}
        """Those that were heard in the last minutes, and when."""

    def __len__(self) -> int:
        return len(self._heard)

    def __contains__(self, router: str) -> bool:
        return router in self._heard

    def was_heard(self, router: str) -> bool:
        """Whether it is there, or was in the last minutes and may be back."""
        return router in self._ever

    def heard_s(self, router: str) -> float:
        """When it was heard last; long ago, where that is not known any more."""
        return self._ever.get(router, float("-inf"))

    def same_key(self, router: str) -> bool | None:
        """Whether its prompts' hashes are keyed as ours; `None`: it did not say, or we do not."""
        known = self._heard.get(router)
        return known.key == self._key if known is not None and known.key and self._key else None

    def names(self) -> list[str]:
        """Those that are heard."""
        return sorted(self._heard)

    @property
    def hears_ends(self) -> bool:
        """Whether some Envoy tells one of them how answers end."""
        return any(one.hears_ends for one in self._heard.values())

    def heard(self, router: str, now_s: float, *, hears_ends: bool | None = None, key: str | None = None) -> bool:
        """It said something; whether it counts: it may have left, or be one too many."""
        if router in self._left:
            return False
        known = self._heard.get(router)
        if known is None:
            if len(self._heard) >= self._peers_max:
                return False
            known = self._heard[router] = _Heard()
        known.at_s = self._ever[router] = now_s
        if hears_ends is not None:
            known.hears_ends = hears_ends
        if key is not None:
            known.key = key
        return True

    def left(self, router: str, now_s: float) -> None:
        """It said goodbye."""
        self._heard.pop(router, None)
        if len(self._left) < LEFT_KEPT_MAX:
            self._left[router] = now_s

    def expire(self, now_s: float) -> None:
        """Those that have been silent for too long: they are forgotten."""
        until_s = now_s - self._silence_s
        for router in [router for router, one in self._heard.items() if one.at_s < until_s]:
            del self._heard[router]
        if len(self._ever) > len(self._heard):
            until_ever_s = now_s - EVER_S
            silent = (router for router in self._ever if router not in self._heard)
            for router in [*(one for one in silent if self._ever[one] < until_ever_s)]:
                del self._ever[router]
            while len(self._ever) > 2 * self._peers_max:
                del self._ever[min(self._ever, key=self._ever.__getitem__)]
        for router in [router for router, at_s in self._left.items() if at_s < until_s]:
            del self._left[router]


class _Heard:
    __slots__ = ("at_s", "hears_ends", "key")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.hears_ends = False
        self.key = ""
