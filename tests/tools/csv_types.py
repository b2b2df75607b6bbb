"""An oracle for the types of CSV columns: the rules in plain Python, and fields to try them on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from edl.data.open import open_reader
from edl.data.reader import schema_of
from edl.data.schema import NO_SCHEMA, Schema

NO_VALUE = (
    "",
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "null",
    "NULL",
    "None",
    "\\N",
    "?",
    "nan",
    "NaN",
    "-nan",
)
BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"


# -- The oracle: the rules, by re and Decimal


def missing(text: str, signs: list[str]) -> bool:
    text = text.strip(BLANKS)
    if text in NO_VALUE or text in signs or re.fullmatch("[+-]*nan", text, re.IGNORECASE):
        return True
    some = [Decimal(each) for each in signs if is_number(each)]
    return is_number(text) and Decimal(text) in some


def is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None


def is_word(text: str) -> bool:
    return re.fullmatch(r"[+-]?inf(inity)?", text, re.IGNORECASE) is not None


def is_held(text: str) -> bool:
    """Tell whether a float64 is the whole number that a text writes out, if it does."""
    if Decimal(text) and abs(float(text)) == float("inf"):
        return False
    return not re.fullmatch(r"[+-]?\d+(\.0*)?", text) or Decimal(text) == Decimal(float(text))


def expected_type(fields: list[str], signs: list[str]) -> str:
    there = [each.strip(BLANKS) for each in fields if not missing(each, signs)]
    digits = [each for each in there if is_number(each)]
    if not digits or any(not is_number(each) and not is_word(each) for each in there):
        return "text"
    if all(re.fullmatch(r"0|-?[1-9]\d*", each) for each in there):
        whole = [int(each) for each in there]
        if all(-(2**63) <= each < 2**63 for each in whole):
            return "int64"
        if all(0 <= each < 2**64 for each in whole):
            return "uint64"
    if any(re.match(r"[+-]?0\d", each) for each in digits):
        return "text"
    return "float64" if all(map(is_held, digits)) else "text"


def expected_values(fields: list[str], kind: str, signs: list[str]) -> list[Any]:
    if kind == "text":
        return ["" if each in signs else each for each in fields]
    blank, read = (float("nan"), float) if kind == "float64" else (7, int)
    return [blank if missing(each, signs) else read(each.strip(BLANKS)) for each in fields]


# -- Fields


def near(r: random.Random) -> str:
    power = r.choice((0, 4, 30, 52, 53, 54, 62, 63, 64, 67))
    return str((1 << power) + r.randint(-2, 2))


SORTS: dict[str, Callable[[random.Random], str]] = {
    "whole": lambda r: str(r.randint(0, 10 ** r.randint(1, 15) - 1)),
    "negative": lambda r: str(-r.randint(1, 10 ** r.randint(1, 18))),
    "near": near,
    "negative near": lambda r: f"-{near(r).lstrip('-')}",
    "long": lambda r: str(r.randint(10 ** (n := r.randint(17, 25)), 10 ** (n + 1) - 1)),
    "round": lambda r: str(r.randint(1, 99)) + "0" * r.randint(14, 30),
    "zeroed": lambda r: r.choice(("00", "-01", "+07", "00.5", "007", "01e3", "0" * 30 + "1")),
    "zero": lambda r: r.choice(("0", "-0", "0.0", "0e1", "-0.0")),
    "plus": lambda r: f"+{r.randint(0, 10**6)}",
    "exponent": lambda r: f"{r.randint(1, 99)}{r.choice('eE')}{r.choice(('', '+', '-'))}"
    f"{r.choice((0, 1, 22, 99, 307, 400))}",
    "fraction": lambda r: repr(r.uniform(-100, 100)),
    "point": lambda r: r.choice((f"{r.randint(0, 10**19)}.", ".5", "9007199254740993.0", "1.50")),
    "missing": lambda r: r.choice(NO_VALUE),
    "word": lambda r: r.choice(("inf", "-Inf", "+INFINITY", "Infinity")),
    "name": lambda r: r.choice(("A0", "New York", "Nan", "NAN", "i1", "infinite", "--nan", "ü")),
    "odd": lambda r: r.choice(("1_000", "１", "0x1f", "1e", "1e+", ".", "-", "+", "1.2.3",
                               "5 a", "--5", "日", "1,5", "5\xa0", "two\nlines", 'say "hi"',
                               "#5", "a" * 9)),
    "sign": lambda r: r.choice(("-999", "-999.0", "-9.99e2", "unknown", "unknown value", "–")),
}  # fmt: skip
SIGNS = ["-999", "unknown", "unknown value", "–"]
NUMERIC = ("whole", "negative", "zero", "fraction", "missing", "plus", "near", "round", "exponent")


def fields_of(r: random.Random, rows: int) -> list[str]:
    """Return a column of one to three sorts of fields, one of them perhaps a single time."""
    some = NUMERIC if r.random() < 0.6 else tuple(SORTS)
    sorts = r.sample(some, r.randint(1, min(3, len(some))))
    fields = [SORTS[r.choice(sorts)](r) for _ in range(rows)]
    if r.random() < 0.3:
        fields = [SORTS[sorts[0]](r) for _ in range(rows)]
        fields[r.randrange(rows)] = SORTS[r.choice(tuple(SORTS))](r)
    return fields


def written(r: random.Random, text: str, escape: str, skip_blanks: bool) -> str:
    special = any(each in text for each in ',"\n\r#|') or text.startswith(" ") or text == ""
    if escape and escape in text or escape and special and text and r.random() < 0.7:
        return re.sub(r'([,"\n\r\\])', r"\\\1", text)
    quoted = special or r.random() < 0.2
    made = '"' + text.replace('"', '""') + '"' if quoted else text
    return " " * r.randint(0, 2) + made if skip_blanks else made


def blanks_around(r: random.Random, text: str) -> str:
    return r.choice(("", " ", "\t")) + text + r.choice(("", " ", "  "))


# -- Files


def write(path: Path, text: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read(path: Path | str, schema: Schema = NO_SCHEMA, **params: Any) -> Any:
    reader = open_reader(str(path), schema=schema, **params)
    (source,) = reader.sources()
    return reader.read(source.name, 0, source.records)


def types(path: Path | str, **params: Any) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema_of(open_reader(str(path), **params))}
