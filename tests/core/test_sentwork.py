from extproc.core.sentwork import SentWork


def test_what_was_sent_shrinks_until_more_is_and_is_never_under_nothing() -> None:
    work = SentWork()
    work.send(100, 10.0, 20.0)
    work.send(50, 12.0, 20.0)
    assert (work.unstarted, work.tokens, work.since_s) == (150, 110.0, 12.0)
    work.send(1, 11.0, 20.0)  # it was sent earlier, and came to this node later
    assert (work.tokens, work.since_s) == (111.0, 12.0)
    work.send(7, 100.0, 20.0)
    assert (work.unstarted, work.tokens) == (158, 7.0)


def test_of_one_that_has_begun_nothing_is_left_to_begin() -> None:
    work = SentWork()
    work.send(100, 10.0, 20.0, has_begun=True)
    assert (work.unstarted, work.tokens) == (0, 100.0)


def test_a_better_count_changes_both() -> None:
    work = SentWork()
    work.send(100, 10.0, 20.0)
    work.resize(-40)
    assert (work.unstarted, work.tokens) == (60, 60.0)
    work.tokens = 10.0
    work.resize(-20)
    assert (work.unstarted, work.tokens) == (40, 0.0)


def test_all_of_one_node_is_at_another() -> None:
    one, other = SentWork(), SentWork()
    one.send(100, 10.0, 20.0)
    other.send(30, 12.0, 20.0)
    one.take_over(other)
    assert (one.unstarted, one.tokens, one.since_s) == (130, 130.0, 12.0)
