"""`extproc` with a fault of ours: its counter of tokens raises, which it never does."""

from typing import NoReturn

from extproc.cli import main
from extproc.tokens.counter import TokenCounter


def raises(*_: object) -> NoReturn:
    msg = "a fault of ours"
    raise RuntimeError(msg)


TokenCounter.count = raises  # type: ignore[assignment]

if __name__ == "__main__":
    main()
