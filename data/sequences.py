"""The making of data sets whose records are sequences: what somebody did before, windows of a text.

As in recipes.py, each takes {path in the carrier: file} and the folder to write to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .recipes import Sources, read_table, split, string_ids, whole

HISTORY = 50  # films of a history, the newest; NDCG and AUC of sequence models hardly gain beyond
_GENRES = 6  # of a film, the most that one has
_NEWEST_SHARE = 0.2  # of each user's ratings are for validation
_WINDOW = 256  # bytes
_NOTHING = -1  # edl.nn.PADDING, which is no id

Arrays = Mapping[str, NDArray[Any]]


def build_ml_100k_histories(sources: Sources, out: Path) -> dict[str, Any]:
    """Build ratings with what their user had liked and disliked before; `label`: rated 4 or 5.

    The newest fifth of each user's ratings is for validation. user_id, item_id, age, release_year
    (0: unknown) and timestamp int64; gender and occupation `string_ids`. Filled up with -1: `liked`
    and `disliked` int16 [N, 50], item ids, the newest first, and `genres` [N, 6] `string_ids` of
    the film. `item_share` float32: the film's share of the likes among the training records.
    """
    tables = {path.suffix[1:]: read_table(path) for path in sources.values()}
    users = {row["user_id"]: row for row in tables["user"]}
    items = {row["item_id"]: row for row in tables["item"]}
    # Ratings of one second are in the order of the film's number.
    ratings = sorted(
        tables["inter"],
        key=lambda row: (int(row["user_id"]), float(row["timestamp"]), int(row["item_id"])),
    )
    user = [users[row["user_id"]] for row in ratings]
    item = [items[row["item_id"]] for row in ratings]
    label = (whole([row["rating"] for row in ratings]) >= 4).astype(np.int64)
    user_id = whole([row["user_id"] for row in ratings])
    item_id = whole([row["item_id"] for row in ratings])
    is_new = _newest(user_id)
    likes = np.bincount(item_id[(label == 1) & ~is_new], minlength=int(item_id.max()) + 1)
    columns = {
        "label": label,
        "timestamp": whole([row["timestamp"] for row in ratings]),
        "user_id": user_id,
        "item_id": item_id,
        "item_share": (likes / likes.sum())[item_id].astype(np.float32),
        "age": whole([row["age"] for row in user]),
        "release_year": whole([row["release_year"] for row in item]),
        "gender": string_ids("gender", [row["gender"] for row in user]),
        "occupation": string_ids("occupation", [row["occupation"] for row in user]),
        "genres": _many("genre", [row["class"].split() for row in item]),
        "liked": _before(user_id, item_id, label == 1),
        "disliked": _before(user_id, item_id, label == 0),
    }
    return _save({"train": ~is_new, "validation": is_new}, columns, out)


def build_shakespeare(sources: Sources, out: Path) -> dict[str, Any]:
    """Build `text` uint8 [N, 256], bytes of a work, and `label`, for each of them the next one.

    A fifth of the works is for validation.
    """
    (source,) = sources.values()
    works = sorted(source.glob("*_gut.txt"))
    rows = {}
    for part, numbers in split(len(works)).items():
        windows = [_windows(works[number].read_bytes()) for number in sorted(numbers)]
        texts, labels = (np.concatenate(each) for each in zip(*windows, strict=True))
        np.savez(out / f"{part}.npz", text=texts, label=labels)
        rows[part] = len(texts)
    return {"rows": rows, "columns": ["text", "label"]}


def _newest(user_id: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell of each rating, ordered by user and time, whether it is in the newest share."""
    _, first, count = np.unique(user_id, return_index=True, return_counts=True)
    place = np.arange(len(user_id)) - np.repeat(first, count)
    is_new: NDArray[np.bool_] = place >= np.repeat(count - np.round(count * _NEWEST_SHARE), count)
    return is_new


def _before(
    user_id: NDArray[np.int64], item_id: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> NDArray[np.int16]:
    """Return for each rating the chosen ones that its user had given before, the newest first."""
    found = np.full((len(user_id), HISTORY), _NOTHING, np.int16)
    past: list[int] = []
    for row, (user, item) in enumerate(zip(user_id.tolist(), item_id.tolist(), strict=True)):
        if row and user != user_id[row - 1]:
            past = []
        found[row, : len(past)] = past
        if chosen[row]:
            past = [item, *past[: HISTORY - 1]]
    return found


def _many(column: str, values: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Return `string_ids` [N, 6] of several values a row."""
    found = np.full((len(values), _GENRES), _NOTHING, np.int64)
    there = np.arange(_GENRES) < np.array([len(each) for each in values])[:, None]
    found[there] = string_ids(column, [value for each in values for value in each])
    return found


def _windows(text: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    read = np.frombuffer(text, np.uint8)
    end = (len(read) - 1) // _WINDOW * _WINDOW
    return read[:end].reshape(-1, _WINDOW), read[1 : end + 1].reshape(-1, _WINDOW)


def _save(parts: Mapping[str, NDArray[np.bool_]], columns: Arrays, out: Path) -> dict[str, Any]:
    """Save each part, in random order."""
    for part, there in parts.items():
        numbers = np.flatnonzero(there)
        numbers = numbers[np.concatenate(list(split(len(numbers)).values()))]
        chosen = {name: array[numbers] for name, array in columns.items()}
        np.savez(out / f"{part}.npz", **cast(Any, chosen))
    rows = {part: int(there.sum()) for part, there in parts.items()}
    return {"rows": rows, "columns": list(columns)}
