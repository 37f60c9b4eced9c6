"""Jinja as transformers sets it up for chat templates, on minijinja: many times faster, and bounded by fuel.

minijinja renders public templates as jinja2 does but for what is put right here, and in `pyjson`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from minijinja import Environment, TemplateError

from extproc.tokens.pyjson import Float, tojson

TAG_CHARS_MAX: Final = 8192
"""Of one expression or statement. minijinja goes down for each operator; 20,000 of them end the process."""
_TAG: Final = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_NAME: Final = "chat"
# Training marks what the assistant says by these; whoever renders leaves them out. `with` has a scope of its own too.
_GENERATION: Final = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class Jinja:
    """One template, compiled. Any thread may render it. Raises `ValueError` where it does not compile.

    An environment has one fuel and one lock, which is waited for with Python's held: so a thread takes one for itself,
    and as many are kept as threads have rendered at the same time.
    """

    def __init__(self, source: str) -> None:
        if any(len(tag) > TAG_CHARS_MAX for tag in _TAG.findall(source)):
            msg = f"a tag of more than {TAG_CHARS_MAX} characters"
            raise ValueError(msg)
        source = source.replace("\r\n", "\n").replace("\r", "\n")  # as jinja2 has line ends
        self._source = _GENERATION.sub(lambda tag: f"{{%{tag[1]} {'endwith' if tag[2] else 'with'} {tag[3]}%}}", source)
        try:
            self._idle = [self._compiled()]
        except TemplateError as error:
            raise ValueError(told(error)) from None

    def render(self, variables: Mapping[str, object], fuel: int) -> str:
        """The text. A step costs one of `fuel`, or 30 ns, and so do 16 bytes of text that are put together.

        Raises `TemplateError` where the template does or fuel is out, whatever filters raise, and what minijinja makes
        of a panic, which is no `Exception`.
        """
        try:
            environment = self._idle.pop()
        except IndexError:
            environment = self._compiled()
        try:
            environment.fuel = fuel
            text = environment.render_template(_NAME, **variables)
        except Exception:
            self._idle.append(environment)
            raise
        self._idle.append(environment)  # one that panicked is of no more use
        return text

    def _compiled(self) -> Environment:
        environment = Environment(
            filters={"tojson": tojson},
            tests={"iterable": _is_iterable, "sequence": _is_sequence, "number": _is_number, "float": _is_float},
            globals={"raise_exception": _raise_exception},
            debug=False,  # it copies all variables into each error
            trim_blocks=True,
            lstrip_blocks=True,
            pycompat=True,
        )
        environment.add_template(_NAME, self._source)
        return environment


def told(error: BaseException) -> str:
    """An error in one short line."""
    message = error.message if isinstance(error, TemplateError) else str(error)
    return f"{message.partition(chr(10))[0][:200]}" or type(error).__name__


def _raise_exception(message: object = "") -> NoReturn:
    msg = f"the template refuses the chat: {message}"
    raise ValueError(msg)


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)  # None is not, as minijinja has it


def _is_sequence(value: object) -> bool:
    return isinstance(value, str | list | tuple | dict)  # text and mappings are, to jinja2


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Float)


def _is_float(value: object) -> bool:
    return isinstance(value, float | Float)
