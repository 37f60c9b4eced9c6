"""Equal shares of tokens between tenants, whatever the sizes of what they ask for."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Shares:
    """How far each tenant who waits has come, over all queues in which it does.

    State: the clock, and for each of these tenants its start and how many of its items wait.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._starts: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._places = count()

    def place(self) -> int:
        """Of an item that has come now, among all."""
        return next(self._places)

    def enter(self, tenant: str) -> None:
        """One more of its items waits."""
        self._starts.setdefault(tenant, self._clock)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One of its items waits no longer."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant], self._starts[tenant]
            if not self._waiting:
                self._clock = 0.0

    def start(self, tenant: str) -> float:
        """Of one that waits; it only ever rises."""
        return self._starts[tenant]

    def went(self, tenant: str, tokens: float) -> None:
        """An item of so many tokens goes, of one who waits."""
        # In another queue those may wait who are behind it: the clock is the furthest start that was served.
        self._clock = max(self._clock, self._starts[tenant])
        self._starts[tenant] += tokens


class FairQueue(Generic[Item]):
    """What waits for the same room: each tenant's in their order, and between tenants who has had least.

    It is a deficit round robin that lets the next item go and has its tenant pay afterwards, so that no quantum need be
    chosen: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).

        goes next   the tenant with the least start, of equal ones the item that came first
        its start   + the tokens of what goes
        clock       = the start of what went last; where a tenant begins who has not been waiting

    So the starts of those who wait differ by less than one item: while tenants wait none of them gets more than one
    item's tokens above its share, and nobody waits for ever. A tenant who leaves and comes back gains nothing, for its
    start is never behind the clock.

    Queues may have their `shares` in common: then what a tenant gets in one counts in the others.

    State: the items of each tenant.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self._shares = shares or Shares()
        self._tenants: dict[str, OrderedDict[str, tuple[int, float, Item]]] = {}
        """Of each who waits its items by id, the oldest first: place, tokens, item."""
        self._heads: list[tuple[float, int, str, str]] = []
        """Start, place, tenant and id of items that are or were the next of their tenants."""
        self._length = 0
        self.tokens = 0.0
        """Of all that wait."""

    def __len__(self) -> int:
        return self._length

    def push(self, tenant: str, item_id: str, item: Item, tokens: float) -> None:
        """An item begins to wait; its id is new, its tokens over 0."""
        assert tokens > 0
        items = self._tenants.setdefault(tenant, OrderedDict())
        items[item_id] = (self._shares.place(), tokens, item)
        self._shares.enter(tenant)
        self._length += 1
        self.tokens += tokens
        if len(items) == 1:
            self._head_changed(tenant)

    def head(self) -> Item:
        """Whose turn it is; at least one waits."""
        _, _, tenant, item_id = self._first()
        return self._tenants[tenant][item_id][2]

    @property
    def turn(self) -> tuple[float, int]:
        """Of the head: start and place. Of queues with the same shares the least comes first."""
        return self._first()[:2]

    def pop(self) -> Item:
        """The head, which waits no longer."""
        _, _, tenant, item_id = self._first()
        self._shares.went(tenant, self._tenants[tenant][item_id][1])
        return self.remove(tenant, item_id)

    def remove(self, tenant: str, item_id: str) -> Item:
        """An item waits no longer, whosever turn it is; it waits now."""
        items = self._tenants[tenant]
        was_head = next(iter(items)) == item_id
        _, tokens, item = items.pop(item_id)
        self._shares.leave(tenant)
        self._length -= 1
        self.tokens -= tokens
        if not items:
            del self._tenants[tenant]
            self._drop_gone()
        elif was_head:
            self._head_changed(tenant)
        return item

    def replace(self, tenant: str, item_id: str, item: Item) -> None:
        """Another item in the place, and at the price, of one that waits now."""
        place, tokens, _ = self._tenants[tenant][item_id]
        self._tenants[tenant][item_id] = (place, tokens, item)

    def _head_changed(self, tenant: str) -> None:
        item_id, (place, _, _) = next(iter(self._tenants[tenant].items()))
        heappush(self._heads, (self._shares.start(tenant), place, tenant, item_id))
        self._drop_gone()

    def _first(self) -> tuple[float, int, str, str]:
        """The entry of the head. Starts may have risen meanwhile, as tenants got theirs in other queues."""
        while True:
            start, place, tenant, item_id = self._heads[0]
            now = self._shares.start(tenant)
            if now == start:
                return self._heads[0]
            heapreplace(self._heads, (now, place, tenant, item_id))
            self._drop_gone()

    def _drop_gone(self) -> None:
        """The first entry is of an item that waits, and there are not many that are not."""
        heads = self._heads
        while heads and not self._is_head(heads[0]):
            heappop(heads)
        if len(heads) > 2 * len(self._tenants) + 16:
            self._heads = [entry for entry in heads if self._is_head(entry)]
            heapify(self._heads)

    def _is_head(self, entry: tuple[float, int, str, str]) -> bool:
        _, _, tenant, item_id = entry
        items = self._tenants.get(tenant)
        return items is not None and next(iter(items)) == item_id
