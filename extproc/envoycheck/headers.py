"""Which headers Envoy lets through: what an external processor may set of them, and what it is shown.

Tried with Envoy 1.40. A header that may not be set is dropped and counted in `rejected_header_mutations`, and the
request or the refusal goes on without it; one that is not shown is as one that the client has not sent.
"""

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

from extproc.core.settings import shown
from extproc.envoycheck.file import At

_ENVOYS_OWN = "x-envoy"
_OVERWRITING = ("OVERWRITE_IF_EXISTS", "OVERWRITE_IF_EXISTS_OR_ADD", 2, 3)


def dropped(rules: At, header: str) -> str | None:
    """What in a HeaderMutationRules keeps a header, in lower case, from being set; `None`: nothing.

    Of those that begin with a colon, and `host`, nothing is said here: they have rules of their own.
    """
    disallowed, allowed = rules.of("disallow_expression", "regex"), rules.of("allow_expression", "regex")
    if disallowed.value is not None and matches(disallowed.value, header):
        return f"disallow_expression {shown(disallowed.value)}"
    otherwise = ""
    if allowed.value is not None:
        if matches(allowed.value, header) is not False:
            return None
        otherwise = f", and allow_expression {shown(allowed.value)}"
    if rules.of("disallow_all").value is True:
        return f"disallow_all{otherwise}"
    if header.startswith(_ENVOYS_OWN) and rules.of("allow_envoy").value is not True:
        return f"no allow_envoy{otherwise}" if rules.value else f"nothing, so none of {_ENVOYS_OWN}-*"
    return None


def removes(mutation: At, header: str) -> bool:
    """Whether a HeaderMutation leaves nothing of what a header, in lower case, said before."""
    if str(mutation.of("remove").value).lower() == header:
        return True
    if matched(mutation.of("remove_on_match", "key_matcher"), header) is True:
        return True
    append = mutation.of("append")
    is_same = str(append.of("header", "key").value).lower() == header
    return is_same and append.of("append_action").value in _OVERWRITING


def hidden(rules: At, header: str) -> tuple[At, str] | None:
    """Which list of a HeaderForwardingRules keeps a header, in lower case, from being shown, and how; `None`: none."""
    allowed, disallowed = rules.of("allowed_headers", "patterns"), rules.of("disallowed_headers", "patterns")
    patterns = list(allowed.each())
    if patterns and all(matched(one, header) is False for one in patterns):
        return allowed, "patterns of others"
    against = next((one for one in disallowed.each() if matched(one, header)), None)
    return None if against is None else (disallowed, shown(against.value))


def matched(pattern: At, header: str) -> bool | None:
    """Whether a StringMatcher matches a header's name; `None` where it cannot be told here."""
    regex = pattern.of("safe_regex", "regex").value
    if regex is not None:
        return matches(regex, header)
    for kind, is_so in (
        ("exact", header.__eq__),
        ("prefix", header.startswith),
        ("suffix", header.endswith),
        ("contains", header.__contains__),
    ):
        text = pattern.of(kind).value
        if isinstance(text, str):
            # Envoy keeps the names of headers in lower case.
            return is_so(text.lower() if pattern.of("ignore_case").value is True else text)
    return None


@lru_cache(maxsize=256)
def _compiled(regex: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{regex})\z", regex_engine="rust-regex"))
    except SchemaError:
        return None


def matches(regex: object, text: str) -> bool | None:
    r"""Whether an expression for RE2 matches the whole text; `None` where it cannot be told.

    Rust's `regex`, which pydantic brings, was made after RE2: linear time, and its syntax but for `\Q`, `\C` and braces
    that count nothing, which it refuses. Python's takes time without bound, and reads `[[:alpha:]]` otherwise.
    """
    compiled = _compiled(regex) if isinstance(regex, str) else None
    return None if compiled is None else compiled.isinstance_python(text)
