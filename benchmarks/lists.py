"""The cost of an element of a list: hashed, looked up, crossed, taken, padded.

    python -m benchmarks.lists [--rounds 5] [--rows 100000]

Lists of one to six of 5,000 words, and of numbers, as a Ragged and as an object for each record,
which is what a column of lists was before there was a Ragged. `printed` is the id of each list's
printed form, which hash64 of such a column was then. All of it in one process and one thread.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.measure import Sample, alternate, sample, table
from edl.nn import hash64
from edl.nn import preprocess as pre

WORDS = 5000
LENGTHS = (1, 6)


def lists(rows: int) -> dict[str, Any]:
    """Make columns of lists, of words and of numbers."""
    r = np.random.default_rng(0)
    lengths = r.integers(LENGTHS[0], LENGTHS[1] + 1, rows)
    words = np.array([f"genre-{n:x}" for n in range(WORDS)])[r.integers(0, WORDS, lengths.sum())]
    return {
        "words": pre.Ragged.of(words, lengths),
        "numbers": pre.Ragged.of(r.integers(0, 1 << 40, lengths.sum()), lengths),
    }


def objects(column: Any) -> Any:
    """Return an object for each record."""
    found = np.empty(len(column), object)
    for place, row in enumerate(column):
        found[place] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the layers on lists.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    asked = parser.parse_args()
    made = lists(asked.rows)
    words, numbers = made["words"], made["numbers"]
    as_objects, numbers_as_objects = objects(words), objects(numbers)
    count = len(words.values)
    few = as_objects[: asked.rows // 20]
    lookup = pre.IndexLookup([f"genre-{n:x}" for n in range(WORDS)])
    crossing, bins = (
        pre.Crossing(1 << 20),
        pre.Discretization(np.arange(1.0, 2**40, 2**33).tolist()),
    )
    order = np.random.default_rng(1).permutation(len(words))
    single = numbers.values[: len(words)]
    fewer = int(np.sum([len(each) for each in few]))

    def of(work: Any) -> Any:
        return lambda: sample(count, work)

    def printed() -> Sample:
        return sample(fewer, lambda: hash64("g", [str(each) for each in few]))

    variants = {
        "printed (before), objects": printed,
        "hash64 of words, objects": of(lambda: hash64("g", as_objects)),
        "hash64 of words": of(lambda: hash64("g", words)),
        "hash64 of numbers, objects": of(lambda: hash64("g", numbers_as_objects)),
        "hash64 of numbers": of(lambda: hash64("g", numbers)),
        "IndexLookup of words": of(lambda: lookup.numpy(words)),
        "Discretization of numbers": of(lambda: bins.numpy(numbers)),
        "Crossing of words with a number": of(lambda: crossing.numpy([words, single])),
        "take in another order": of(lambda: words[order]),
        "padded": of(lambda: numbers.padded()),
    }
    found = alternate(variants, asked.rounds)
    print(table(found, [next(iter(variants))], ("elements/s", 1.0), ("CPU us an element", 1e6)))


if __name__ == "__main__":
    main()
