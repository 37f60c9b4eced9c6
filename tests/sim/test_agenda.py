from extproc.sim.agenda import Agenda


def test_things_happen_in_order_of_time_and_at_one_time_in_the_order_of_entry() -> None:
    agenda, happened = Agenda(), list[tuple[float, str]]()

    def happens(now_s: float, about: str) -> None:
        assert now_s == agenda.now_s
        happened.append((now_s, about))

    for at_s, about in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.5, "b")):
        agenda.at(at_s, happens, about)
    assert agenda.next_s == 1.0
    for _ in range(4):
        agenda.go_on()
    assert happened == [(1.0, "a"), (1.5, "b"), (2.0, "c"), (2.0, "d")]


def test_what_is_entered_for_now_happens_now_and_after_what_was_entered_before() -> None:
    agenda, happened = Agenda(), list[str]()
    agenda.at(1.0, lambda now_s, _: agenda.at(now_s, lambda *_: happened.append("entered late")))
    agenda.at(1.0, lambda *_: happened.append("entered before"))
    agenda.at(1.5, lambda *_: happened.append("later"))
    for _ in range(3):
        agenda.go_on()
    assert happened == ["entered before", "entered late"]
