"""Checkpoints, rows and differences as people are shown them: tables, out of plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .rows import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_FEW = 4  # values of a row in a table, unless -o wide
_LONG = 60  # characters of an optimizer's argument
_MOST_DENSE = 12  # tensors, likewise
_NOISE = 1e-5  # of float32, in an output


def nbytes(count: float) -> str:
    """Return a size in bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def shown(about: dict[str, Any], wide: bool) -> list[RenderableType]:
    """Draw what a checkpoint says of itself."""
    optimizer = dict(about["optimizer"])
    name = optimizer.pop("name")
    arguments = ", ".join(f"{key}={_short(value)}" for key, value in optimizer.items())
    params = ", ".join(f"{key}={value}" for key, value in about["model_params"].items())
    definition = about["definition"] or "not said"
    top = _table("", "")
    top.show_header = False
    for label, value in (
        ("checkpoint", about["checkpoint"]),
        ("version", f"{about['version']}, written {about['created']}"),
        ("job", about["job"] or "not said"),
        ("strategy", f"{about['strategy'] or 'not said'}, {about['shards']} shards"),
        ("definition", f"{definition} ({params})" if params else definition),
        ("optimizer", f"{name}({arguments})"),
        ("seed", str(about["seed"])),
        ("files", f"{about['files']}, {nbytes(about['nbytes'])}"),
    ):
        top.add_row(label, value)
    parts: list[RenderableType] = [top]
    if about["tables"]:
        tables = _table("table", "rows", "dim", "type", "weights", "with state")
        for table in about["tables"]:
            sizes = nbytes(table["nbytes"]), nbytes(table["nbytes_with_state"])
            tables.add_row(
                *(table["name"], f"{table['rows']:,}", str(table["dim"]), table["dtype"]), *sizes
            )
        parts += ["", tables]
    if about["dense"]:
        parts += ["", _dense(about["dense"], wide)]
    return parts


def _short(value: object) -> str:
    """Return a value as text; a schedule may be a table of thousands."""
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _dense(tensors: list[dict[str, Any]], wide: bool) -> Table:
    drawn = _table("dense tensor", "shape", "kind")
    most = len(tensors) if wide else _MOST_DENSE
    for tensor in tensors[:most]:
        drawn.add_row(tensor["name"], str(tensor["shape"]), tensor["kind"])
    if len(tensors) > most:
        drawn.add_row(f"and {len(tensors) - most} more: -o wide", "", "")
    return drawn


def rows(found: Rows, most: int) -> list[dict[str, Any]]:
    """Return the first rows as JSON can hold them."""
    return [
        {
            **({} if found.keys is None else {"key": str(found.keys[place])}),
            "id": int(found.ids[place]),
            "steps": int(found.steps[place]),
            "weight": found.weight[place].tolist(),
            "state": {name: values[place].tolist() for name, values in found.state.items()},
        }
        for place in range(min(most, len(found)))
    ]


def rows_table(listed: list[dict[str, Any]], wide: bool) -> Table:
    """Draw rows, each with its first values."""
    has_keys = bool(listed) and "key" in listed[0]
    drawn = _table(*(["key"] if has_keys else []), "id", "steps", "weight")
    for row in listed:
        values = row["weight"] if wide else row["weight"][:_FEW]
        more = f" ... of {len(row['weight'])}" if len(values) < len(row["weight"]) else ""
        drawn.add_row(
            *([row["key"]] if has_keys else []),
            str(row["id"]),
            str(row["steps"]),
            " ".join(f"{v:+.6g}" for v in values) + more,
        )
    return drawn


def differences(found: dict[str, Any], wide: bool) -> list[RenderableType]:
    """Draw what two checkpoints do not have in common; wide: also what they have."""
    parts: list[RenderableType] = [
        f"{side}: version {found[side]['version']}, {found[side]['checkpoint']}" for side in "ab"
    ]
    if found["same"] and not wide:
        return [*parts, "All dense values and all rows are the same."]
    dense = _table("dense tensor", "values", "differ", "by at most", "mean")
    for each in found["dense"]:
        if wide or each.get("values_that_differ", 1):
            dense.add_row(each["name"], *_told(each, "values", "values_that_differ"))
    tables = _table(
        *("table", "rows in both", "differ", "by at most", "mean", "only in a", "only in b")
    )
    for each in found["tables"]:
        only = [f"{each.get(f'rows_only_in_{side}', 0):,}" for side in "ab"]
        if wide or each.get("values_that_differ", 1) or only != ["0", "0"]:
            tables.add_row(each["name"], *_told(each, "rows", "rows_that_differ"), *only)
    return parts + [part for each in (dense, tables) if each.row_count for part in ("", each)]


def _told(each: dict[str, Any], count: str, differ: str) -> tuple[str, str, str, str]:
    if "only_in" in each:
        return "", f"only in {each['only_in']}", "", ""
    if "shapes" in each:
        return "", f"{each['shapes'][0]} in a, {each['shapes'][1]} in b", "", ""
    return f"{each[count]:,}", f"{each[differ]:,}", f"{each['largest']:.3g}", f"{each['mean']:.3g}"


def _table(*columns: str) -> Table:
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, no_wrap=True)
    return drawn


def exported(out: str, made: dict[str, Any]) -> list[str]:
    """Return what is told of an export, by its manifest: a line for each thing."""
    size = nbytes(sum(file["nbytes"] for file in made["files"]))
    files = "; ".join(f"{form}: {', '.join(f.values())}" for form, f in made["forms"].items())
    lines = [f"wrote {out} ({size}), version {made['cut']['version']}: {files}"]
    for of, noise in (("weights", 0.0), ("outputs", _NOISE)):
        for name, error in made["errors"][of].items():
            if error["largest"] > noise:
                far = f"{error['largest']:.3g} at most, {error['mean']:.3g} in the mean"
                lines.append(f"{of} of {name} are off by {far}, of {error['values']:,} values")
    return [*lines, *made["notes"]]
