"""`extproc` with a fault of ours: its counter of tokens raises, which it never does."""

from extproc.cli import main
from extproc.core.request import Prompt, TokenCount
from extproc.tokens.counter import TokenCounter


def raises(self: TokenCounter, model: str, prompt: Prompt) -> TokenCount:
    msg = "a fault of ours"
    raise RuntimeError(msg)


TokenCounter.count_now = raises  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
