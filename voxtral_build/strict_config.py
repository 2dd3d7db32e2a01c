"""Configurations that say what is wrong with them.

Pydantic checks; what it finds is told as a `ConfigError` with the field, what was got,
what is allowed and the next step.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from voxtral_build.errors import ConfigError


def suggest(got: object, allowed: Iterable[object]) -> str | None:
    """'did you mean "..."?' where one of `allowed` is close to `got`."""
    close = difflib.get_close_matches(str(got), [str(item) for item in allowed], n=1)
    return f'did you mean "{close[0]}"?' if close else None


def mistake(
    what: str,
    *,
    got: object = None,
    allowed: str | Iterable[object] | None = None,
    next_step: str | None = None,
    at: tuple[str | int, ...] = (),
) -> PydanticCustomError:
    """An error of a validator, with the parts of a `ConfigError`; `at` extends the field."""
    # The message is a template for pydantic, and braces in user text must not be one.
    return PydanticCustomError(
        "mistake", "{what}", {"what": what, "parts": (got, allowed, next_step), "at": at}
    )


class StrictModel(BaseModel):
    """A part of a configuration: no unknown key, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = [info.alias or name for name, info in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    raise mistake(
                        "unknown key",
                        got=key,
                        allowed=known,
                        next_step=suggest(key, known) or "remove it",
                        at=(key,),
                    )
        return data

    @classmethod
    def checked(cls, data: Any, origin: str) -> Self:
        """Check what comes from outside; `origin` names the place in messages.

        Raises:
            ConfigError: names the field, what it got, what is allowed, and the next step.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _config_error(error, origin) from None


_EXPECTED = {
    "dict_type": "a mapping of keys",
    "int_type": "a whole number",
    "list_type": "a list, such as [a, b]",
    "model_type": "a mapping of keys",
    "too_short": "at least one entry",
}


def _config_error(error: ValidationError, origin: str) -> ConfigError:
    details = error.errors(include_url=False)
    translated = _translate(details[0], origin)
    if len(details) > 1:
        more = ", ".join(dict.fromkeys(_field(detail["loc"]) for detail in details[1:]))
        step = translated.next_step
        return ConfigError(
            translated.what,
            got=translated.got,
            allowed=translated.allowed,
            next_step=f"{step + '; ' if step else ''}then mend {more}",
        )
    return translated


def _translate(detail: ErrorDetails, origin: str) -> ConfigError:
    """Pydantic's error as what, got, allowed and next step."""
    loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    got: object = _short(detail["input"])
    allowed: str | Iterable[object] | None = None
    next_step: str | None = None
    if kind == "mistake":
        loc = (*loc, *context["at"])
        what = context["what"]
        got, allowed, next_step = context["parts"]
        got = None if got is None else _short(got)
    elif kind == "missing":
        what, got, next_step = "missing", None, f"add {loc[-1]}"
    elif kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        what, next_step = "unknown value", suggest(detail["input"], allowed)
    elif loc and loc[-1] == "[key]":
        loc = loc[:-1]
        what, allowed = "not a name", "lower-case letters, digits and _, such as 8da4w_g64"
        next_step = "rename it"
    else:
        what = "wrong value"
        allowed = _EXPECTED.get(kind, detail["msg"].removeprefix("Input should be "))
        if kind == "int_type" and isinstance(detail["input"], str):
            got = f'the text "{got}"'
    where = f"{_field(loc)}: " if loc else ""
    return ConfigError(f"{origin}: {where}{what}", got=got, allowed=allowed, next_step=next_step)


def _field(loc: Iterable[str | int]) -> str:
    """("variants", 0, "dtype") -> variants[0].dtype."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _short(value: object, limit: int = 100) -> str:
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
