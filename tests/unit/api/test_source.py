"""What was typed is written as a module that means the same, or refused in one sentence."""

from __future__ import annotations

import itertools
import linecache
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

import edl.nn
from edl.api.definition import Definition, parts_of, text_of
from edl.api.source import module_text
from edl.api.typed import MOST_NBYTES, literal
from edl.common.errors import DefinitionError
from edl.nn import SGD, Adam, ByName, Warmup

pytestmark = pytest.mark.fast

_numbers = itertools.count(1)


def run_in(scope: dict[str, Any], text: str, name: str) -> None:
    exec(compile(text, name, "exec", dont_inherit=True), scope)  # noqa: S102 as a notebook does


@pytest.fixture
def cells() -> Iterator[Any]:
    """Yield a function that runs a cell as IPython does: in one module, its text in linecache."""
    main = types.ModuleType("__main__")
    before, known = sys.modules["__main__"], set(linecache.cache)
    sys.modules["__main__"] = main

    def run(text: str) -> dict[str, Any]:
        name = f"<ipython-input-{next(_numbers)}-0123456789ab>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        run_in(vars(main), text, name)
        return vars(main)

    yield run
    sys.modules["__main__"] = before
    for name in set(linecache.cache) - known:
        del linecache.cache[name]


def run(text: str) -> dict[str, Any]:
    """Run a module that was written, as a job would: with nothing around it."""
    scope: dict[str, Any] = {"__name__": "written"}
    run_in(scope, text, "written.py")
    return scope


def test_a_function_is_written_with_all_that_it_uses(cells: Any) -> None:
    typed = cells(
        """
import math
import os.path as places
import xml
import xml.etree.ElementTree
from collections import Counter
from math import sqrt as root
import functools

SIZES = {"a": (1,), "b": [2.5, None]}

class Base:
    factor = root(16)

    def size(self):
        return SIZES["a"]

class Net(Base):
    halves = [each / 2 for each in (2, 4)]

    def __init__(self):
        super().__init__()
        self.element = xml.etree.ElementTree.Element("a")

def twice(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(function(x))
    return wrapper

def start():
    return later()

def later():
    return Counter("aab")["a"]

@twice
def add(x, by=start()):
    return x + by + math.floor(0.5)

@functools.cache
def joined(*names):
    return places.join(*names)
"""
    )

    made = run(
        module_text({"model": typed["Net"], "feed": typed["add"], "x": typed["joined"]}, "-")
    )

    net = made["model"]()
    assert ((1,), 4.0, [1, 2], "a") == (net.size(), net.factor, net.halves, net.element.tag)
    assert (14, made["add"]) == (made["feed"](10), made["feed"])
    assert "a/b" == made["x"]("a", "b")


def test_what_is_called_while_the_module_runs_stands_before_it(cells: Any) -> None:
    typed = cells(
        """
def a():
    return B().c()
class B:
    def c(self):
        return d()
def d():
    return 7
def e(x=a()):
    return x
"""
    )

    assert 7 == run(module_text({"e": typed["e"]}, "-"))["e"]()


def test_what_was_typed_anew_stands_above_what_needs_it_at_once(cells: Any) -> None:
    """A cell that is run again, or changed, comes after those that were run with it before."""
    cells("def a():\n    return 1\n")
    cells("def e(x=a()):\n    return x\n")
    cells("class B:\n    def c(self):\n        return 7\n")
    typed = cells("def a():\n    return B().c()\n")

    assert 7 == run(module_text({"e": typed["e"]}, "-"))["e"]()


def test_another_name_of_a_function_is_written_as_one(cells: Any) -> None:
    typed = cells(
        "def f(x):\n    return x + 1\ng = h = f\ndef feed(x, y=h(1)):\n    return g(x), y\n"
    )

    made = run(module_text({"feed": typed["feed"], "loss": typed["g"]}, "-"))

    assert ((6, 2), made["f"]) == (made["feed"](5), made["loss"])


def test_a_function_within_another_is_refused_unless_its_source_says_so(cells: Any) -> None:
    cells("import functools\ndef f():\n    return 1\n")
    typed = cells("g = functools.cache(f)\ndef feed():\n    return g()\n")

    with pytest.raises(DefinitionError, match="there is another function around f, which"):
        module_text({"feed": typed["feed"]}, "-")


def test_functions_that_call_each_other_are_written_once(cells: Any) -> None:
    typed = cells(
        """
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
"""
    )

    text = module_text(typed and {"even": typed["even"]}, "-")

    assert (1, True) == (text.count("def odd"), run(text)["even"](10))


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_any_functions_and_classes_mean_the_same_when_written(
    drawn: list[tuple[set[int], set[int], bool]],
) -> None:
    """Each uses, at once, some that stand before it, and later any others."""
    texts = []
    for i, (at_once, later, is_class) in enumerate(drawn):
        now = " + ".join(f"f{j}(0)" for j in sorted(at_once) if j < i) or "0"
        then = " + ".join(f"f{j}(n - 1)" for j in sorted(later) if j < len(drawn)) or "0"
        # What is called at once may use only what is there by then.
        body = f"{i} + (0 if n < 1 else {then})"
        if is_class:
            texts.append(
                f"class C{i}:\n    v = {now}\n\ndef f{i}(n):\n    return C{i}.v + {body}\n"
            )
        else:
            texts.append(f"def f{i}(n, v={now}):\n    return v + {body}\n")
    text = "\n".join(texts)
    name = f"<ipython-input-{next(_numbers)}-hypothesis>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    typed: dict[str, Any] = {"__name__": "typed_by_hypothesis"}
    module = sys.modules["typed_by_hypothesis"] = types.ModuleType("typed_by_hypothesis")
    typed = vars(module)
    try:
        run_in(typed, text, name)
        last = f"f{len(drawn) - 1}"

        made = run(module_text({last: typed[last]}, "-"))

        assert [typed[last](n) for n in range(3)] == [made[last](n) for n in range(3)]
    finally:
        del linecache.cache[name], sys.modules["typed_by_hypothesis"]


def test_a_class_without_methods_is_that_of_the_last_cell(cells: Any) -> None:
    cells("class Sizes:\n    width = 1\n")
    typed = cells("class Sizes:\n    width = 2\n")
    typed = cells("def model():\n    return Sizes.width\n")

    assert 2 == run(module_text({"model": typed["model"]}, "-"))["model"]()


def test_a_class_whose_methods_were_made_by_others_is_written(cells: Any) -> None:
    cells("from dataclasses import dataclass, field\nfrom enum import Enum\n")
    cells("from typing import NamedTuple\n")
    cells("class Kind(Enum):\n    A = 1\n\nclass Pair(NamedTuple):\n    x: int\n    y: int = 2\n")
    typed = cells(
        """
@dataclass(frozen=True)
class Sizes:
    width: int = 3
    names: list[str] = field(default_factory=list)

def model():
    return Sizes(4), Kind.A, Pair(1)
"""
    )

    sizes, kind, pair = run(module_text({"model": typed["model"]}, "-"))["model"]()

    assert ((4, []), "A", (1, 2)) == ((sizes.width, sizes.names), kind.name, pair)


def test_a_lambda_is_written_where_it_is_to_be_told_from_others(cells: Any) -> None:
    typed = cells("one, two = lambda x: x + 1, lambda x: x * 2\nsame = [lambda: 1, lambda: 1]\n")

    assert 6 == run(module_text({"metrics": typed["two"]}, "-"))["metrics"](3)
    assert 1 == run(module_text({"metrics": typed["same"][0]}, "-"))["metrics"]()


def test_what_is_installed_is_imported(cells: Any) -> None:
    typed = cells("from edl.nn import hash64\nimport numpy as np\nfrom math import tau\n")
    typed = cells("def feed(r, mode):\n    return hash64(r), np.pi, tau\n")

    text = module_text({"feed": typed["feed"], "loss": math.sqrt}, "-")

    assert "from edl.common.hashing import hash64\n" in text
    assert "import numpy as np\n" in text
    assert 3.0 == run(text)["loss"](9)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adam(),
        SGD(lr=0.5, momentum=0.9, clip_norm=1.0),
        SGD(lr=edl.nn.Cosine(lr=0.1, total_steps=9)),
        ByName(Adam(0.1), {"users": SGD(0.2), "deep.*": Adam(betas=(0.5, 0.9))}),
        Adam(lr=Warmup(edl.nn.Constant(0.1), 5)),
    ],
)
def test_an_optimizer_of_edl_nn_is_written_as_a_function(optimizer: Any) -> None:
    assert optimizer == run(module_text({"optimizer": optimizer}, "-"))["optimizer"]()


_constants = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.integers())
    ),
    max_leaves=10,
)


@given(_constants)
def test_a_constant_is_itself_again(value: object) -> None:
    text = literal(value)

    assert text is not None
    made = eval(text, {"float": float})
    assert (value, type(value)) == (made, type(made))


def test_what_is_no_constant_or_too_long_is_none() -> None:
    assert [None] * 4 == [literal(v) for v in (object(), [print], {1: object()}, "x" * MOST_NBYTES)]


def _counter() -> Any:
    count = 3

    def feed(records: Any, mode: str) -> Any:
        return records, count

    return feed


_TYPED = """
import numpy as np
weights = np.zeros(3)
model = 1
class Net:
    def __init__(self):
        self.weights = weights
def uses_model():
    return model
def fine():
    return 2
"""


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            lambda typed: typed["Net"],
            (
                "Net, which uses weights, cannot be written as source: weights is a "
                "numpy.ndarray, and only functions, classes, modules and plain constants can: make "
                "it inside of a function, or put the definition into a file and give its path."
            ),
        ),
        (
            lambda typed: _counter(),
            (
                "feed of the definition cannot be written as source: _counter.<locals>.feed takes "
                "count from the function around it (a closure): make that a global, or an argument "
                "of model() by model_params."
            ),
        ),
        (
            lambda typed: eval("lambda: 1"),
            (
                "feed of the definition cannot be written as source: the source of <lambda> is not "
                "to be found, as of what is typed at Python's plain prompt or made by exec: put it "
                "into a file and give its path."
            ),
        ),
        (
            lambda typed: types.SimpleNamespace(),
            (
                "feed of the definition cannot be written as source: feed is a "
                "types.SimpleNamespace, and only functions, classes, modules and plain constants "
                "can: make it inside of a function, or put the definition into a file and give its "
                "path."
            ),
        ),
    ],
)
def test_what_cannot_be_written_is_one_sentence(cells: Any, part: Any, sentence: str) -> None:
    typed = cells(_TYPED)

    with pytest.raises(DefinitionError) as refused:
        module_text({"feed": part(typed)}, "-")

    assert sentence == str(refused.value)


def test_a_name_of_two_things_is_refused(cells: Any) -> None:
    typed = cells(_TYPED)

    with pytest.raises(DefinitionError, match="'model' means two things in this definition"):
        module_text({"model": typed["fine"], "loss": typed["uses_model"]}, "-")


def test_a_file_that_has_changed_since_its_import_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def feed(records, mode):\n    return records, 1\n")
    scope: dict[str, Any] = {"__name__": "mine", "__file__": str(path)}
    run_in(scope, path.read_text(), str(path))
    path.write_text("def feed(records, mode):\n    return records, 2\n")

    with pytest.raises(DefinitionError, match="the file of feed has changed since"):
        module_text({"feed": scope["feed"]}, "-")


def _f() -> None: ...


def test_parts_that_lack_or_are_made_already_are_told_before_a_start() -> None:
    import torch

    with pytest.raises(DefinitionError, match=r"^The definition lacks feed. Expected: def feed"):
        text_of({"model": _f, "loss": _f, "optimizer": Adam()})
    with pytest.raises(DefinitionError, match="model of the definition is a Linear that is made"):
        text_of(parts_of(Definition(model=torch.nn.Linear(1, 1), loss=_f, optimizer=_f, feed=_f)))
    with pytest.raises(DefinitionError, match="loss of the definition is a int, and no function"):
        text_of(parts_of(Definition(model=_f, loss=3, optimizer=_f, feed=_f)))


def test_a_class_with_functions_is_a_definition(cells: Any) -> None:
    typed = cells(
        """
class Mine:
    def model():
        return 1
    @staticmethod
    def feed(records, mode):
        return records
    def loss(outputs, labels):
        return 2
    def optimizer():
        return 3
"""
    )

    made = run(text_of(parts_of(typed["Mine"])))

    assert (1, "r", 2, 3) == (
        made["model"](),
        made["feed"]("r", "train"),
        made["loss"](0, 0),
        made["optimizer"](),
    )
    with pytest.raises(DefinitionError, match="'metric' is no part .*; did you mean 'metrics'?"):
        parts_of(types.SimpleNamespace(metric=1))
