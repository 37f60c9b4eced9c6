import resource

import pytest

from extproc import openfiles

INFINITE = resource.RLIM_INFINITY
MAX = openfiles.OPEN_FILES_MAX


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 4096, 4096),
        (1024, MAX, MAX),
        (1024, MAX + 1, MAX),
        (1024, INFINITE, MAX),
        (4096, 4096, 4096),
        (MAX + 5, INFINITE, MAX + 5),
        (INFINITE, INFINITE, INFINITE),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: limits.append(to))
    openfiles.allow_open_files()
    assert limits[-1] == (then, hard)
    assert len(limits) == (1 if then == soft else 2)
