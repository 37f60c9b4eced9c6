"""Messages with prompts, read to their end at once."""

from extproc.core.peershares import PromptPlaced
from extproc.exchange.placements import WrongPlacementsError, placements_of, prompts_of


def read(message: bytes) -> tuple[str, list[PromptPlaced]] | str:
    """Whose it is, and what it tells, or why it is refused."""
    found = placements_of(message)
    if isinstance(found, str):
        return found
    try:
        return found.router, [one for one in prompts_of(found) if one is not None]
    except WrongPlacementsError as wrong:
        return str(wrong)
