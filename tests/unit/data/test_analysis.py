"""`edl data analyze`: what it says of files, against pandas' kind of oracle in numpy."""

import collections
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from edl.cli import analyze as command
from edl.cli import main as cli
from edl.common.errors import DataError, RecordError, UsageError
from edl.common.ragged import Ragged
from edl.data import analyze as module
from edl.data.analysis import Sizes, Summary
from edl.data.analysis_file import load, save
from edl.data.analyze import SHARD, analyze, merged, shard_size, shards_of, summarize, write
from edl.data.open import open_reader
from edl.data.reader import Columns, Source, take
from edl.nn import preprocess as pre

SIZES = Sizes(vocabulary=50, distinct=1000, quantiles=500)


class Table:
    """A reader of one table, which notes what is read; some records are broken."""

    def __init__(self, records, broken=()):
        self.records, self.broken, self.read_times = records, set(broken), {}

    def sources(self):
        return [Source("table", len(self.records))]

    def read(self, source, start, end, skip=()):
        for number in range(start, end):
            if number in self.broken - set(skip):
                raise RecordError(source, number, "it is torn")
        numbers = np.array([n for n in range(start, end) if n not in skip], int)
        for number in numbers.tolist():
            self.read_times[number] = self.read_times.get(number, 0) + 1
        return take(self.records, numbers)


def columns(count=1000, seed=0):
    rng = np.random.default_rng(seed)
    number = rng.normal(5, 2, count)
    number[::7] = np.nan
    return Columns(
        {
            "number": number,
            "whole": rng.integers(0, 40, count),
            "text": rng.choice(np.array(["a", "b", "", "München"]), count, p=[0.5, 0.3, 0.1, 0.1]),
            "bool": rng.random(count) < 0.25,
            "day": np.datetime64("2024-01-01") + rng.integers(0, 30, count),
            "wide": rng.integers(0, 255, (count, 2, 3)).astype(np.uint8),
        }
    )


def test_each_statistic_is_that_of_numpy():
    table = columns()
    found = analyze(Table(table), SIZES, 300).to_dict()["columns"]
    plain = table["number"][~np.isnan(table["number"])]
    words, counts = np.unique(table["text"][table["text"] != ""], return_counts=True)

    assert list(found) == list(table)
    number = found["number"]
    assert (number["count"], number["missing"]) == (len(plain), np.isnan(table["number"]).sum())
    assert (number["min"], number["max"]) == (plain.min(), plain.max())
    assert number["mean"] == pytest.approx(plain.mean())
    assert number["deviation"] == pytest.approx(plain.std())
    assert number["distinct"] == len(plain)
    assert found["whole"]["distinct"] == len(np.unique(table["whole"]))
    assert dict(found["text"]["vocabulary"]) == dict(zip(words, counts, strict=True))
    assert found["text"]["missing"] == (table["text"] == "").sum()
    assert dict(found["bool"]["vocabulary"])[1] == table["bool"].sum()
    assert (found["day"]["min"], found["day"]["max"]) == ("2024-01-01", "2024-01-30")
    assert found["wide"]["count"] == 6000
    assert found["wide"]["mean"] == pytest.approx(table["wide"].mean())


values_of = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "large": st.integers(0, 2**64 - 1),
    "text": st.text("aé", max_size=2),
    "bytes": st.binary(max_size=2).filter(lambda each: not each.endswith(b"\0")),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32),
}
DTYPES = {"large": np.uint64, "text": np.str_, "bytes": object, "float": np.float32}


@given(st.sampled_from(sorted(values_of)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.lists(values_of[kind], max_size=3)))
))  # fmt: skip
def test_elements_of_lists_count_one_by_one(drawn):
    kind, rows = drawn
    flat = [each for row in rows for each in row]
    arrays = [np.array(row, DTYPES.get(kind, np.int64)) for row in rows]
    records = Columns({"x": Ragged.rows_of(arrays, DTYPES.get(kind, np.int64))})

    summary = Summary(SIZES)
    summary.add(records)
    found = summary.to_dict()["columns"]

    if not flat:
        assert found == {}
        return
    words = [_text(each) if kind == "bytes" else each for each in flat]
    there = [each for each in words if each != ""]
    shown = [_shown(each) if kind == "bytes" else each for each in there]
    empty = sum(not row for row in rows)
    assert (found["x"]["count"], found["x"]["missing"]) == (
        len(there),
        empty + len(words) - len(there),
    )
    if there:
        assert dict(map(tuple, found["x"]["vocabulary"])) == collections.Counter(shown)
        assert found["x"]["distinct"] == len(set(there))
        least, greatest = (shown[there.index(of(there))] for of in (min, max))
        assert (found["x"]["min"], found["x"]["max"]) == (least, greatest)


def _text(value):
    return value.decode("utf-8", "surrogateescape")


def _shown(text):
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def test_lists_of_a_shard_are_read_in_blocks_and_objects_that_are_lists_are_lists():
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 9, n % 4) for n in range(3000)]
    objects = np.empty(len(rows), object)
    objects[:] = rows
    found = [
        analyze(Table(Columns({"x": column})), SIZES, 700).to_dict()
        for column in (Ragged.rows_of(rows), objects)
    ]

    assert found[0] == found[1]
    assert found[0]["columns"]["x"]["count"] == sum(map(len, rows))


def test_durations_are_told_in_microseconds_and_in_their_order():
    columns = {"x": np.array([9, 10, "NaT"], "m8[ms]")}
    summary = Summary(SIZES)
    summary.add(Columns(columns))
    summary.add(Columns({"x": columns["x"].astype("m8[us]")}))

    found = summary.to_dict()["columns"]["x"]

    assert (found["min"], found["max"], found["distinct"], found["missing"]) == (9000, 10_000, 2, 2)


def test_quantiles_are_numpys_within_the_error_that_they_tell():
    table = columns(5000)
    found = analyze(Table(table), SIZES, 900).to_dict()["columns"]["whole"]["quantiles"]
    shares = np.array(found["probabilities"])
    error = found["rank_error"]
    low, high = (
        np.quantile(table["whole"], (shares + side * error).clip(0, 1)) for side in (-1, 1)
    )

    assert error < 0.05
    assert ((np.array(found["values"]) >= np.floor(low)) & (found["values"] <= np.ceil(high))).all()


@given(
    st.lists(
        st.tuples(st.floats(allow_infinity=False, width=32), st.text("ab", max_size=2)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 40),
)
def test_merge_of_parts_is_the_whole(rows, size):
    table = Columns({"x": np.array([x for x, _ in rows]), "t": np.array([t for _, t in rows])})
    whole, parts = Summary(SIZES), Summary(SIZES)
    whole.add(table)
    for start in range(0, len(rows), size):
        part = Summary(SIZES)
        part.add(table.take(slice(start, start + size)))
        parts.merge(part)

    one, other = (json.loads(json.dumps(each.to_dict())) for each in (whole, parts))
    for name in ("mean", "deviation"):
        a, b = (each["columns"]["x"].pop(name) for each in (one, other))
        assert a == b or a == pytest.approx(b, rel=1e-6, abs=1e-6)
    assert one == other


def test_each_record_is_read_once_whatever_the_shards(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)
    tables = [Table(columns()) for _ in range(3)]
    summaries = [analyze(table, SIZES, s) for table, s in zip(tables, (1000, 128, 7), strict=True)]

    assert all(set(table.read_times.values()) == {1} for table in tables)
    assert [each.records for each in summaries] == [1000] * 3


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 20))
def test_shards_hold_each_record_once(counts, size):
    sources = [Source(f"s{n}", count) for n, count in enumerate(counts)]
    held = [
        (each.source, n) for each in shards_of(sources, size) for n in range(each.start, each.end)
    ]

    assert held == [(source.name, n) for source in sources for n in range(source.records)]


def test_broken_records_are_named_and_left_out():
    summary = analyze(Table(columns(), broken=[0, 5, 999]), SIZES, 400)

    assert summary.records == 997
    assert summary.broken == [f"table: record {n}: it is torn" for n in (0, 5, 999)]


def test_too_many_broken_records_end_it():
    with pytest.raises(DataError, match="More than 100 records are broken; the first is: table"):
        analyze(Table(columns(), broken=range(200)), SIZES, 90)


def test_reader_that_gives_fewer_records_than_it_counts_is_found():
    class Short(Table):
        def read(self, source, start, end, skip=()):
            return super().read(source, start, min(end, 990), skip)

    with pytest.raises(DataError, match="Of 1000 records 990 were read"):
        analyze(Short(columns()), SIZES)


def test_examples_that_lack_a_feature_miss_it():
    records = [
        {"ids": np.array([1, 2, 2])},
        {"ids": np.array([], np.int64), "name": [b"a", b"b"]},
        {"ids": np.array([7])},
        {"name": [b"a"]},
        {"name": [b""]},
    ]
    found = analyze(Table(records), SIZES, 4).to_dict()["columns"]

    assert (found["ids"]["count"], found["ids"]["missing"]) == (4, 3)
    assert (found["name"]["count"], found["name"]["missing"]) == (3, 3)
    assert found["name"]["vocabulary"] == [["a", 2], ["b", 1]]


def test_long_texts_are_in_no_vocabulary_and_are_its_error():
    words = np.array(["a", "x" * 201, "a", "y" * 300], object)
    found = analyze(Table(Columns({"t": words})), SIZES).to_dict()["columns"]["t"]

    assert (found["distinct"], found["vocabulary"], found["vocabulary_error"]) == (3, [["a", 2]], 2)
    with pytest.raises(UsageError, match="kept 1 of the 3 values"):
        pre.IndexLookup.from_analysis({"columns": {"t": found}}, "t")


def test_column_of_text_and_numbers_is_one_sentence():
    summary, other = Summary(SIZES), Summary(SIZES)
    summary.add([{"a": np.array([1])}])
    other.add([{"a": [b"x"]}])

    with pytest.raises(DataError, match="'a' is of number in one place and of text"):
        summary.merge(other)


def test_infinite_and_huge_numbers_leave_json_that_can_be_read():
    found = analyze(Table(Columns({"x": np.array([1e308, -1e308, np.inf, 1.0])})), SIZES)
    column = json.loads(json.dumps(found.to_dict(), allow_nan=False))["columns"]["x"]

    assert (column["infinite"], column["max"], column["deviation"]) == (1, 1e308, None)


def test_command_writes_what_the_layers_read(tmp_path):
    table = columns(300)
    names = ("number", "whole", "text")
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    lines = [",".join(map(str, row)).replace("nan", "") for row in rows]
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for place, file in enumerate(files):
        file.write_text("\n".join([",".join(names), *lines[place::2]]) + "\n")
    out = tmp_path / "found.json"

    done = CliRunner().invoke(cli.cli, ["data", "analyze", *map(str, files), "--out", str(out)])

    assert (done.exit_code, done.output.splitlines()[-1]) == (
        0, f"wrote {out}: 300 records, each read once",
    )  # fmt: skip
    records = open_reader(str(files[0])).read(str(files[0]), 0, 150)
    layers = [
        pre.Normalizer.from_analysis(out, "number"),
        pre.Discretization.from_analysis(out, "whole", 4),
        pre.RoundIdentity.from_analysis(out, "whole"),
        pre.LogRound.from_analysis(out, "whole", base=2),
        pre.IndexLookup.from_analysis(out, "text"),
        pre.Hashing.from_analysis(out, "text"),
    ]
    known = pre.ToNumber("float64", 5.0)(records["number"])
    made = [layers[0](known), *(each(records["whole"]) for each in layers[1:4])]
    made += [each(records["text"]) for each in layers[4:]]
    assert made[0].numpy() == pytest.approx(
        (known - np.nanmean(table["number"])).numpy() / np.nanstd(table["number"]), rel=1e-5
    )
    assert 30 <= np.bincount(made[1]).min() <= np.bincount(made[1]).max() <= 46
    assert made[2].tolist() == records["whole"].tolist()
    assert made[3].max() == 5
    assert layers[4].vocabulary[:2] == ("a", "b")
    assert layers[5].num_bins == 6


def test_example_of_the_page_runs_on_what_the_command_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{18 + n % 50},{'chef' if n % 3 else 'nurse'},{n % 2}" for n in range(90)]
    (tmp_path / "census.csv").write_text("\n".join(["age,occupation,label", *rows]) + "\n")
    page = (Path(cli.__file__).parents[1] / "docs/preprocessing.md").read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.+?)```", page, re.DOTALL)[1])
    reader = open_reader("census.csv")

    assert cli.run(["data", "analyze", "census.csv"]) == 0
    records = reader.read(reader.sources()[0].name, 0, 64)
    features, labels = runpy.run_path("mine.py")["feed"](records, "train")

    assert features["ids"].shape == (64, 3)
    assert features["ids"].min(0).values.tolist()[:2] == [0, 0]
    assert features["ids"].max(0).values.tolist()[:2] == [9, 1]
    assert abs(features["age"].mean()) < 0.2
    assert labels.tolist() == records["label"].tolist()


def test_command_says_what_was_left_out(tmp_path, capsys):
    file, out = tmp_path / "a.csv", tmp_path / "out.json"
    file.write_text("\n".join(["a", *map(str, range(20_000)), "zz"]) + "\n")

    typed = ["--data_reader_params", "dtypes=a:int64"]
    assert cli.run(["data", "analyze", str(file), "--out", str(out), *typed]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("20000 records, each read once; left out as broken: 1\n")
    assert "record 20000: column 'a': 'zz' is no int64" in printed.err


def test_command_says_what_decided_against_appearances(tmp_path, capsys):
    file, out = tmp_path / "a.csv", tmp_path / "out.json"
    file.write_text("a\n1\n02\n")

    assert cli.run(["data", "analyze", str(file), "--out", str(out)]) == 0
    assert "a: text, since 02 has a leading zero (record 1 of" in capsys.readouterr().err


def test_command_that_cannot_write_reads_nothing(tmp_path, capsys):
    for out in (tmp_path, tmp_path / "none" / "out.json"):
        assert cli.run(["data", "analyze", "no.csv", "--out", str(out)]) == 2
        assert "must be a file in a folder that is there" in capsys.readouterr().err


def test_command_on_a_missing_file_is_one_sentence(tmp_path):
    assert cli.run(["data", "analyze", str(tmp_path / "no.csv")]) == 2
    assert not (tmp_path / "analysis.json").exists()


def test_parts_out_of_files_merge_to_the_same_bytes(tmp_path):
    """Broken to see it fail: the sample's variance, the vocabulary's error are not in the file."""
    rng = np.random.default_rng(4)
    table = columns(6000, seed=1)
    odd = np.array([*rng.normal(size=5996), -0.0, np.inf, 5e-324, 1e308])
    words = np.array(["München", "x" * 300, "\udcff", "a"], object)[rng.integers(0, 4, 6000)]
    big = rng.integers(-(2**62), 2**62, 6000)
    table = Columns({**table, "odd": odd, "words": words, "big": big})
    sources = [Source("table", 6000)]
    reader = Table(table, broken=[3, 4000])
    whole = analyze(reader, SIZES, 700)

    for shard in shards_of(sources, 700):
        save(summarize(reader, SIZES, shard), tmp_path / f"{shard.number}.npz")
    parts = (load(tmp_path / f"{each.number}.npz", SIZES) for each in shards_of(sources, 700))
    write(merged(parts, SIZES, sources), tmp_path / "parts.json")
    write(whole, tmp_path / "whole.json")

    assert (tmp_path / "whole.json").read_bytes() == (tmp_path / "parts.json").read_bytes()
    assert whole.columns["number"].quantiles.rank_error > 0
    assert not whole.columns["big"].distinct.exact


def test_torn_part_is_one_sentence(tmp_path):
    (tmp_path / "1.npz").write_bytes(b"PK torn")

    with pytest.raises(DataError, match="1.npz, which the workers of this job have written"):
        load(tmp_path / "1.npz", SIZES)


def test_the_more_records_the_larger_the_shards():
    counts = (0, 1, SHARD, 256 * SHARD, 256 * SHARD + 1, 10**10)
    sizes = [shard_size([Source("a", count)]) for count in counts]

    assert sizes == [SHARD, SHARD, SHARD, SHARD, 2 * SHARD, 75 * SHARD]


@pytest.mark.parametrize(("records", "cores", "workers"), [(4, 8, 0), (9, 8, 2), (90, 3, 3)])
def test_workers_are_as_many_as_pay_and_as_there_are_cores(
    tmp_path, monkeypatch, records, cores, workers
):
    """A job where it pays; no job where two workers would be too many."""
    asked = []

    def in_job(settings):
        asked.append(settings)
        return 1

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_in_job", in_job)
    monkeypatch.setattr(module, "PAYS", 4)
    monkeypatch.setattr(command.cores, "usable", lambda: cores)
    np.save("a.npy", np.arange(records))

    assert cli.run(["data", "analyze", "a.npy", "--vocabulary", "7"]) == (1 if workers else 0)
    assert [each.num_workers for each in asked] == ([workers] if workers else [])
    for each in asked:
        assert each.training_data == str(tmp_path / "a.npy")
        assert (each.output, each.vocabulary, each.num_ps) == (
            str(tmp_path / "analysis.json"),
            7,
            0,
        )


def test_what_cannot_be_read_starts_no_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_in_job", lambda _: pytest.fail("it was started"))
    (tmp_path / "a.csv").write_text("")

    assert cli.run(["data", "analyze", str(tmp_path / "a.csv"), "--num_workers", "2"]) == 1
    assert "has no records" in capsys.readouterr().err
