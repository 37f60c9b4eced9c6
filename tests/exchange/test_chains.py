"""Prompts sent somewhere, written together."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.peershares import PromptPlaced
from extproc.exchange import chains
from extproc.exchange.chains import Placed
from tests.exchange.reading import read

NODES = ("a", "b", "10.0.0.1:8000")


def placed(node_id: str, blocks: tuple[int, ...], computed: bool = False) -> Placed:
    return Placed(node_id, chains.bytes_of(blocks), computed)


def heard(messages: list[bytes]) -> list[tuple[str, tuple[int, ...], bool]]:
    told = []
    for message in messages:
        assert len(message) <= MESSAGE_BYTES_MAX
        found = read(message)
        assert not isinstance(found, str), found
        assert found[0] == "r1"
        told += [(one.node_id, one.blocks, one.computed) for one in found[1]]
    return told


def chain_of(blocks: list[int]) -> tuple[int, ...]:
    """As prompts have it: a number stands for all up to its block."""
    return tuple(xxh3_64_intdigest(bytes(blocks[: end + 1])) for end in range(len(blocks)))


prompts = st.lists(
    st.builds(
        PromptPlaced,
        st.sampled_from(NODES),
        st.lists(st.integers(0, 2), min_size=1, max_size=6).map(chain_of),
        st.booleans(),
    ),
    max_size=30,
)


@given(prompts, st.integers(0, 1500))
def test_what_was_within_the_budget_comes_as_it_was(told: list[PromptPlaced], bytes_max: int) -> None:
    newest_first = [one for prompt in reversed(told) if (one := chains.placed_of(prompt)) is not None]
    chosen, size, seen = chains.within(newest_first, bytes_max)
    assert size <= bytes_max
    messages = list(chains.messages("r1", chosen))
    assert sum(map(len, messages)) <= bytes_max + 4
    shown = heard(messages)
    assert len(set(shown)) == len(shown)
    assert {(node_id, chains.bytes_of(blocks)) for node_id, blocks, _ in shown} == {
        (one.node_id, one.chain) for one in chosen
    }
    if bytes_max == 1500:
        assert seen == len(told)
    # What is told was computed where any of those that were looked at says so.
    for node_id, blocks, computed in shown:
        chain = chains.bytes_of(blocks)
        same = [one for one in newest_first[:seen] if (one.node_id, one.chain) == (node_id, chain)]
        assert computed == any(one.computed for one in same)


@given(st.lists(st.tuples(st.sampled_from(NODES), st.lists(st.integers(0, 2), min_size=1, max_size=9)), max_size=20))
def test_numbers_of_any_kind_come_as_they_are(told: list[tuple[str, list[int]]]) -> None:
    distinct = {(node_id, tuple(blocks)) for node_id, blocks in told}
    shown = heard(list(chains.messages("r1", [placed(node_id, blocks) for node_id, blocks in distinct])))
    assert sorted((node_id, blocks) for node_id, blocks, _ in shown) == sorted(distinct)


def test_the_newest_are_told_and_each_beginning_once() -> None:
    newest_first = [placed("a", (1, 2, 3)), placed("a", (1, 2, 4)), placed("b", (1, 2, 3)), placed("a", (9,))]
    name = 1 + chains.NODE_BYTES
    first, second = 24 + chains.PLACED_BYTES + name, 8 + chains.PLACED_BYTES
    third = chains.PLACED_BYTES + name
    assert chains.within(newest_first, first + second + third)[0] == newest_first[:3]
    assert chains.within(newest_first, first + second + third)[1:] == (first + second + third, 3)
    assert chains.within(newest_first, first + second + third - 1)[0] == newest_first[:2]
    assert chains.within(newest_first, first - 1) == ([newest_first[3]], 8 + chains.PLACED_BYTES + name, 4)


def test_long_lists_are_several_messages() -> None:
    chain = tuple(range(4000))
    many = [placed("a", (number, *chain)) for number in range(20)]
    messages = list(chains.messages("r1", many))
    assert len(messages) > 1
    assert len(heard(messages)) == 20
    wide = [placed(f"n{number}", chain) for number in range(120)]
    messages = list(chains.messages("r1", wide))
    assert len(messages) == 3, "what a receiver has to take in is bounded, however few bytes say it"
    assert len(heard(messages)) == 120
    nodes = [placed(f"n{number}", (1,)) for number in range(chains.NODES_MAX + 1)]
    assert [len(heard([message])) for message in chains.messages("r1", nodes)] == [chains.NODES_MAX, 1]


def test_what_others_could_not_take_is_not_told() -> None:
    assert chains.placed_of(PromptPlaced("no node's", (1,), True)) is None
    assert chains.placed_of(PromptPlaced("a", (), True)) is None
    long = chains.placed_of(PromptPlaced("a", tuple(range(5000)), True))
    assert long is not None
    assert len(long.chain) == 8 * chains.CHAIN_BLOCKS_MAX
