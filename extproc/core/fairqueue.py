"""Deficit round robin between tenants, with the smallest quantum there is."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """What waits for the same room. Each tenant's come in their order; between tenants the tokens are shared.

    Each turn gives every tenant who waits the same credit, and as much as the first of them lacks to pay for its next
    item: so its item goes, and its credit is used up. That is deficit round robin (Shreedhar and Varghese, 1995)
    without a quantum to choose, or self-clocked fair queueing (Golestani, 1994), in whose terms it is written:

        due of a tenant's next item = start + its tokens
        start                       = the due of the tenant's item before; when it begins to wait, the clock
        clock                       = the highest due of the items that went

    So while tenants wait none of them gets more than one item's tokens above its share, and nobody waits for ever. A
    tenant who leaves and comes back gains nothing, for its start is never behind the clock.

    State: the items of each tenant, the clock, and each tenant's start.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[Item]] = {}
        self._clock = 0.0
        self._heads: list[tuple[float, int, str, str]] = []
        """Due, order, tenant and id of items that are or were the next of their tenants."""
        self._order = count()
        self._length = 0
        self.tokens = 0.0
        """Of all that wait."""

    def __len__(self) -> int:
        return self._length

    def push(self, tenant: str, item_id: str, item: Item, tokens: float) -> None:
        """An item begins to wait; its id is new, its tokens over 0."""
        assert tokens > 0
        one = self._tenants.get(tenant)
        if one is None:
            one = self._tenants[tenant] = _Tenant(self._clock)
        one.items[item_id] = (next(self._order), tokens, item)
        self._length += 1
        self.tokens += tokens
        if len(one.items) == 1:
            self._head_changed(tenant, one)

    def head(self) -> Item:
        """Whose turn it is; at least one waits."""
        _, _, tenant, item_id = self._heads[0]
        return self._tenants[tenant].items[item_id][2]

    def pop(self) -> Item:
        """The same, who waits no longer."""
        due, _, tenant, item_id = self._heads[0]
        self._tenants[tenant].start = due
        # Who gave up a large item may be due before the clock with its next. Newcomers must not be.
        self._clock = max(self._clock, due)
        return self.remove(tenant, item_id)

    def remove(self, tenant: str, item_id: str) -> Item:
        """An item waits no longer, whosever turn it is; it waits now."""
        one = self._tenants[tenant]
        was_head = next(iter(one.items)) == item_id
        _, tokens, item = one.items.pop(item_id)
        self._length -= 1
        self.tokens -= tokens
        if not one.items:
            del self._tenants[tenant]
            self._drop_gone()
        elif was_head:
            self._head_changed(tenant, one)
        return item

    def replace(self, tenant: str, item_id: str, item: Item) -> None:
        """Another item in the place, and at the price, of one that waits now."""
        order, tokens, _ = self._tenants[tenant].items[item_id]
        self._tenants[tenant].items[item_id] = (order, tokens, item)

    def _head_changed(self, tenant: str, one: "_Tenant[Item]") -> None:
        item_id, (order, tokens, _) = next(iter(one.items.items()))
        heappush(self._heads, (one.start + tokens, order, tenant, item_id))
        self._drop_gone()

    def _drop_gone(self) -> None:
        """The first entry is of an item that waits, and there are not many that are not."""
        heads = self._heads
        while heads and not self._is_head(heads[0]):
            heappop(heads)
        if len(heads) > 2 * len(self._tenants) + 16:
            self._heads = [entry for entry in heads if self._is_head(entry)]
            heapify(self._heads)
        if not self._tenants:
            self._clock = 0.0

    def _is_head(self, entry: tuple[float, int, str, str]) -> bool:
        _, _, tenant, item_id = entry
        one = self._tenants.get(tenant)
        return one is not None and next(iter(one.items)) == item_id


class _Tenant(Generic[Item]):
    __slots__ = ("items", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.items: OrderedDict[str, tuple[int, float, Item]] = OrderedDict()
        """By id, the oldest first: order, tokens, item."""
