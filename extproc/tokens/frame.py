"""What a tokenizer puts around a text where it is asked to add its special tokens."""

from tokenizers import Tokenizer

from extproc.kvchain import id_bytes


def beginning(tokenizer: Tokenizer) -> str:
    """The first token in front of the text, as BOS; empty: it puts none."""
    before, _ = _framed(tokenizer)
    return (tokenizer.id_to_token(before[0]) or "") if before else ""


def ids(tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    """The ids before the text and behind it, as `kvchain` wants them."""
    before, behind = _framed(tokenizer)
    return id_bytes(before), id_bytes(behind)


def _framed(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    plain, framed = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    begins = next((at for at in range(len(framed)) if framed[at : at + len(plain)] == plain), 0)
    return framed[:begins], framed[begins + len(plain) :]
