"""The prices of machines, from a table that the user gives: $ an hour by kind and market.

m5.xlarge:
  on-demand: 0.192
  spot: 0.071
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import UsageError
from ..common.values import yaml_loader

ON_DEMAND, SPOT = MARKETS = ("on-demand", "spot")


@dataclass(frozen=True)
class Price:
    """What a machine of one kind costs, $ an hour. None: it is not sold on spot."""

    on_demand: float
    spot: float | None = None


Prices = dict[str, Price]  # by kind


def of(prices: Mapping[str, Price], kind: str, market: str) -> float:
    """Return the $ an hour of a kind of node on a market. Raises UsageError where none is given."""
    if market not in MARKETS:
        raise UsageError(f"There is no market {market!r}: a node is {' or '.join(MARKETS)}.")
    price = prices.get(kind)
    found = None
    if price is not None:
        found = price.on_demand if market == ON_DEMAND else price.spot
    if found is None:
        raise UsageError(
            f"The price table lacks {kind}.{market}, of which nodes were used: add it."
        )
    return found


def read(path: str, kinds: Collection[str], others: bool = False) -> Prices:
    """Return the prices of a YAML file. `kinds` are those that there are, or that one can ask for.

    `others`: it may have more, which are of no use here.

    Raises UsageError that names the field: for a file that cannot be read, a kind that does not
    exist or has no price, an unknown market, and a price that is no number of at least 0.
    """
    import yaml

    try:
        table = yaml.load(Path(path).read_text(encoding="utf-8"), yaml_loader())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read the price table {path}: {error}.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    return parse(table, path, kinds, others)


def parse(table: object, where: str, kinds: Collection[str], others: bool = False) -> Prices:
    """Return the prices of what YAML made of a table; `where` names it in errors. See `read`."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} must hold kinds of nodes, each with `on-demand: $ an hour`.")
    prices = {}
    for kind, row in table.items():
        if kind not in kinds and not others:
            raise UsageError(f"{where}: {kind}: there is no such kind of node{_near(kind, kinds)}.")
        prices[str(kind)] = _price(row, f"{where}: {kind}")
    for kind in sorted(kinds):
        if kind not in prices:
            near = difflib.get_close_matches(kind, prices, n=1)
            said = f"; did {near[0]} mean it?" if near else f": give `{kind}:` and its price."
            raise UsageError(f"{where}: {kind} is missing{said}")
    return prices


def _price(row: object, where: str) -> Price:
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: give `on-demand: $ an hour`, and `spot:` where it is sold.")
    for market, price in row.items():
        if market not in MARKETS:
            raise UsageError(f"{where}.{market}: there is no such market{_near(market, MARKETS)}.")
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not (is_number and math.isfinite(price) and price >= 0):
            raise UsageError(f"{where}.{market}: a price is at least 0 $ an hour, not {price!r}.")
    if ON_DEMAND not in row:
        raise UsageError(f"{where}.{ON_DEMAND} is missing: what is saved is told against it.")
    return Price(row[ON_DEMAND], row.get(SPOT))


def _near(spelled: object, names: Collection[str]) -> str:
    near = difflib.get_close_matches(str(spelled), names, n=1)
    return f"; did you mean {near[0]}?" if near else f" (there are {', '.join(sorted(names))})"
