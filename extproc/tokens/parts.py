"""Whether a chat template goes through the parts of a message's content, or wants it as one text.

vLLM and SGLang look for it in the template's syntax tree. What they look for is told here from its tags.
"""

import re
from typing import Final

_COMMENT: Final = re.compile(r"\{#.*?#\}", re.DOTALL)
_SET: Final = re.compile(r"\{%[-+]?\s*set\s+([^=%]+?)\s*=\s*(.+?)\s*[-+]?%\}", re.DOTALL)
_FOR: Final = re.compile(
    r"\{%[-+]?\s*for\s+([^%]+?)\s+in\s+(.+?)(?:\s+if\s.*?)?(?:\s+recursive)?\s*[-+]?%\}", re.DOTALL
)
_SLICES_AND_FILTERS: Final = r"(?:\s*\[[^\[\]]*:[^\[\]]*\]|\s*\|\s*\w+(?:\([^()]*\))?)*\s*\)*"


def goes_through_parts(source: str) -> bool:
    """Whether it has a loop over the `content` of what a loop over the messages, or some of them, gives."""
    source = _COMMENT.sub("", source)
    assignments: list[tuple[str, str]] = _SET.findall(source)
    loops: list[tuple[str, str]] = _FOR.findall(source)
    lists = ["messages"]
    for name in lists:  # which grows
        for target, value in assignments:
            if _is(value, re.escape(name)) and target not in lists:
                lists.append(target)
    messages = {target for target, value in loops if any(_is(value, re.escape(name)) for name in lists)}
    if not all(name.isidentifier() for name in [*lists, *messages]):
        return False  # there they give up, and take it for the usual kind
    contents = [rf"{name}(?:\.content|\[\s*['\"]content['\"]\s*\])" for name in messages]
    return any(_is(value, content) for _, value in loops for content in contents)


def _is(expression: str, pattern: str) -> bool:
    return re.fullmatch(rf"\(*\s*{pattern}{_SLICES_AND_FILTERS}", expression) is not None
