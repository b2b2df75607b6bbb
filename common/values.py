"""Text to typed values, for flags and job files. Nothing is evaluated.

`k=v,k2=v2` is the form of dictionaries that ElasticDL's users know. A value may be quoted or stand
in brackets; a piece without `=` belongs to the value before it, so that `envs=A=1,2,B=3` means
{"A": "1,2", "B": "3"}. Semicolons separate as well where values are typed (`a=1; b=2`).
A text that begins with `{` is JSON or YAML.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from typing import Any

from .errors import UsageError

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?")
_YAML_INTEGER = re.compile(  # but for base 60
    r"[-+]?(0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"
)
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_YES = {"true", "yes", "on", "1"}
_NO = {"false", "no", "off", "0"}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def as_text(value: object) -> str:
    """Return the text of which `convert` makes the same value."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def safe_loader() -> Any:
    """Return PyYAML's SafeLoader, which takes a key that is given twice for an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML takes the last of several values of a key; here a second one is an error."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in keys:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{key.value!r} is given twice", key.start_mark
                        )
                    keys.add((key.tag, key.value))
            return dict(super().construct_mapping(node, deep))

    return Loader


def yaml_loader() -> Any:
    """Return a loader of plain values, each key once.

    PyYAML takes 1e-3 for a text, and makes objects of dates; it would take 1:4 for 64.
    """
    import yaml

    class Loader(safe_loader()):  # type: ignore[misc]
        """YAML 1.2's floats."""

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, pattern) for tag, pattern in known if not tag.endswith((":timestamp", ":int"))
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", _YAML_INTEGER, list("+-0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("+-.0123456789"))
    return Loader


def convert(value: object, kind: object, said: str) -> Any:
    """Return `value` (text of a flag, or what YAML made of it) as `kind`.

    A kind is str, int, float, bool, a list of texts, a dictionary, or one of the plain ones or
    None. `said` names the setting in the UsageError.
    """
    if kind in (int | None, float | None) and _is_none(value):
        return None
    if kind in (int, int | None):
        return _number(value, int, said)
    if kind in (float, float | None):
        return _number(value, float, said)
    if kind is bool:
        return _boolean(value, said)
    if kind is str:
        return _string(value, said)
    if kind == list[str]:
        return _texts(value, said)
    return _dictionary(value, said, typed=kind == dict[str, Any])


def _is_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.lower() in ("none", "null"))


def _number(value: object, kind: type[int | float], said: str) -> int | float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            made = kind(value)
        except (ValueError, OverflowError):
            pass
        else:
            if isinstance(value, str) or made == value:
                return made
    what = "a whole number" if kind is int else "a number"
    raise UsageError(f"{said} takes {what}, not {value!r}.")


def _boolean(value: object, said: str) -> bool:
    text = str(value).lower()
    if text not in _YES | _NO:
        raise UsageError(f"{said} is either true or false, not {value!r}.")
    return text in _YES


def _string(value: object, said: str) -> str:
    if value is None or isinstance(value, bool | list | dict):
        raise UsageError(f"{said} takes a text, not {value!r}: put it in quotes.")
    return str(value)


def _texts(value: object, said: str) -> list[str]:
    """Return a list's items as text; a text is split as a shell does."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{said}: {value!r} cannot be split: {error}.") from error
    items = value if isinstance(value, list | tuple) else [None]
    if not all(isinstance(each, str | int | float) for each in items):
        raise UsageError(f"{said} takes a list of texts and numbers, not {value!r}.")
    return [as_text(each) for each in items]


def _dictionary(value: object, said: str, *, typed: bool) -> dict[str, Any]:
    """Merge several texts (a repeated flag) into a dictionary; the last wins."""
    made: dict[str, Any] = {}
    for part in value if isinstance(value, list | tuple) else [value]:
        given = _pairs(part, said, typed=typed) if isinstance(part, str) else part
        if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
            raise UsageError(f"{said} takes k=v,k2=v2 or a mapping by name, not {part!r}.")
        made.update(given)
    try:
        json.dumps(made)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{said} takes numbers, texts, lists and mappings: {error}.") from error
    if typed:
        return made
    return {key: _string(item, f"{said}: {key}") for key, item in made.items()}


def _pairs(text: str, said: str, *, typed: bool) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return dict(_load(text, said))
    pairs: list[tuple[str, str]] = []
    for separator, piece in _split(text, ",;" if typed else ","):
        key, equals, value = piece.partition("=")
        if equals and re.fullmatch(r"[\w.-]+", key.strip()):
            pairs.append((key.strip(), value.strip()))
        elif pairs and separator:
            key, before = pairs[-1]
            pairs[-1] = (key, before + separator + piece)
        elif piece.strip():
            raise UsageError(f"{said} takes k=v,k2=v2, but {piece.strip()!r} has no key.")
    return {key: scalar(value, said) if typed else _unquoted(value) for key, value in pairs}


def _split(text: str, separators: str) -> list[tuple[str, str]]:
    """Yield (separator before it, piece) outside of quotes and brackets."""
    pieces, separator, piece, closing = [], "", "", ""
    for letter in text:
        if closing:
            closing = closing[:-1] if letter == closing[-1] else closing + _opened(letter, closing)
        elif letter in separators:
            pieces.append((separator, piece))
            separator, piece = letter, ""
            continue
        elif letter in _PAIRS or (letter in "'\"" and piece.rstrip().endswith("=")):
            closing = _PAIRS.get(letter, letter)
        piece += letter
    return [*pieces, (separator, piece)]


def _opened(letter: str, closing: str) -> str:
    """Return what closes a bracket or quote that opens within another; nothing opens in quotes."""
    if closing[-1] in "'\"":
        return ""
    return letter if letter in "'\"" else _PAIRS.get(letter, "")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def scalar(text: str, said: str) -> Any:
    """Return a value by its look: true, null, 3, 1e-3, [1, 2], {a: 1}.

    Quotes make it a string.
    """
    if text != _unquoted(text):
        return _unquoted(text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    return _load(text, said) if text[:1] in ("[", "{") else text


def _load(text: str, said: str) -> Any:
    import yaml

    try:
        return json.loads(text, object_pairs_hook=partial(_once, text=text, said=said))
    except ValueError:
        pass  # YAML, then
    try:
        return yaml.load(text, yaml_loader())  # a SafeLoader
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise UsageError(f"{said}: {text!r} is neither JSON nor YAML: {what}") from error


def _once(pairs: list[tuple[str, Any]], text: str, said: str) -> dict[str, Any]:
    """Return an object of JSON. Raises UsageError where it has a key twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{said}: {text!r} gives {key!r} twice: leave one of them out.")
        found[key] = value
    return found


def bounds(text: str, said: str) -> tuple[int, int]:
    """Return the two numbers of MIN:MAX, or of one number for both. Raises UsageError."""
    low, colon, high = text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError as error:
        raise UsageError(f"{said} {text} is no range: say MIN:MAX, 1:4 for example.") from error
    if most < least:
        raise UsageError(f"{said} {text}: MIN is above MAX; did you mean {most}:{least}?")
    return least, most


def check_namespace(name: str, said: str) -> None:
    """Check that a namespace can have this name; "" is the usual one. Raises UsageError."""
    if name and not _LABEL.fullmatch(name):
        raise UsageError(
            f"{said} {name}: no namespace has such a name: it is made of at most 63 lower-case "
            "letters, digits and dashes, with no dash at either end (RFC 1123 label)."
        )


def seconds(text: str) -> float:
    """Parse `20s`, `500ms`, `1.5m`, `2h` or `20`. Raises ValueError."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms|s|m|h|)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no time such as 20s, 500ms or 1m")
    return float(found[1]) * _UNITS[found[2]]
