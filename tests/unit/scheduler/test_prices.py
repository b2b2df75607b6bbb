import pytest

from edl.common.errors import UsageError
from edl.scheduler.prices import Price, of, parse, read

KINDS = {"m5.xlarge", "p3.2xlarge"}
GOOD = {"m5.xlarge": {"on-demand": 0.192}, "p3.2xlarge": {"on-demand": 3.06, "spot": 0.97}}


def test_a_table_is_read(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "m5.xlarge: {on-demand: 0.192}\np3.2xlarge:\n  on-demand: 3.06\n  spot: 97e-2\n"
    )

    prices = read(str(path), KINDS)

    assert prices == {"m5.xlarge": Price(0.192), "p3.2xlarge": Price(3.06, 0.97)}
    assert of(prices, "p3.2xlarge", "spot") == 0.97
    assert of(prices, "m5.xlarge", "on-demand") == 0.192


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, "t.yaml must hold kinds of nodes"),
        ({**GOOD, "m5.xlrge": {}}, "t.yaml: m5.xlrge: there is no such kind of node; did you mean"),
        ({**GOOD, 7: {}}, "t.yaml: 7: there is no such kind of node (there are m5.xlarge, p3"),
        ({"m5.xlarge": {"on-demand": 1}}, "t.yaml: p3.2xlarge is missing"),
        ({**GOOD, "m5.xlarge": 0.192}, "t.yaml: m5.xlarge: give `on-demand:"),
        ({**GOOD, "m5.xlarge": {"spot": 1}}, "t.yaml: m5.xlarge.on-demand is missing"),
        (
            {**GOOD, "m5.xlarge": {"spott": 1}},
            "m5.xlarge.spott: there is no such market; did you me",
        ),
        ({**GOOD, "m5.xlarge": {"on-demand": -1}}, "m5.xlarge.on-demand: a price is at least 0"),
        ({**GOOD, "m5.xlarge": {"on-demand": True}}, "m5.xlarge.on-demand: a price is at least 0"),
        (
            {**GOOD, "m5.xlarge": {"on-demand": "a lot"}},
            "a price is at least 0 $ an hour, not 'a lot'",
        ),
        ({**GOOD, "m5.xlarge": {"on-demand": float("nan")}}, "m5.xlarge.on-demand: a price is"),
    ],
)
def test_a_bad_table_is_one_sentence_that_names_the_field(table, said):
    with pytest.raises(UsageError) as error:
        parse(table, "t.yaml", KINDS)

    assert said in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "\xff"])
def test_a_file_that_is_no_yaml_is_said(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(UsageError, match=r"prices\.yaml"):
        read(str(path), KINDS)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match="Cannot read the price table"):
        read(str(tmp_path / "none.yaml"), KINDS)


def test_a_market_that_a_kind_is_not_sold_on_is_said():
    with pytest.raises(UsageError, match=r"lacks a\.spot"):
        of({"a": Price(1.0)}, "a", "spot")
    with pytest.raises(UsageError, match="no market 'reserved'"):
        of({"a": Price(1.0)}, "a", "reserved")
