"""The documentation names only what there is: files, functions, links, flags, code that runs."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import runpy
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tools import data_tables

from edl.cli import main as cli
from edl.common.settings import knobs, spellings
from edl.data.datasets import prepare
from edl.data.open import open_reader
from edl.model_zoo.check import check_definition
from edl.model_zoo.spec import CALLBACKS, load_definition

ROOT = Path(cli.__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()
WALKTHROUGH = (ROOT / "docs/walkthrough.md").read_text()
MODEL_ZOO = (ROOT / "docs/model-zoo.md").read_text()

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(
    r"((?:[a-z]\w*/)+_{0,2}[a-z]\w*)\.((?!py\b|md\b|yaml\b|proto\b|svg\b)[A-Za-z_][\w.]*)"
)
_FILE = re.compile(r"[\w./-]+(?:\.(?:py|md|proto|toml|yaml|svg)|/)")

(FOLDERS,) = [  # of the package, as setup.py installs them
    ast.literal_eval(node.value)
    for node in ast.parse((ROOT / "setup.py").read_text()).body
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FOLDERS"
]


def section(text: str, title: str) -> str:
    """Return the part of a page below a heading, up to the next heading of its level."""
    _, _, rest = text.partition(f"\n## {title}\n")
    assert rest, f"no section {title!r}"
    return rest.partition("\n## ")[0]


def inline_code(text: str) -> list[str]:
    return _CODE.findall(_FENCE.sub("", text))


@cache
def names_of(module: Path) -> frozenset[str]:
    """Return the dotted names that a module defines: functions, classes, their members."""
    return frozenset(_names(ast.parse(module.read_text()).body, ""))


@cache
def names_of_tests() -> frozenset[str]:
    """Return the names of all tests that are functions of a module."""
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    )


def _names(body: list[ast.stmt], prefix: str) -> list[str]:
    names = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            names += _names(node.body, f"{prefix}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [prefix + t.id for t in targets if isinstance(t, ast.Name)]
    return names


def named(text: str) -> list[tuple[str, str]]:
    """Return (module, name) of every `folder/module.name`."""
    found = [_NAME.fullmatch(code.removesuffix("()")) for code in inline_code(text)]
    return [(m[1], m[2]) for m in found if m]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_its_title(page):
    assert page.read_text().startswith(("# ", "<"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_functions_that_a_page_names_exist(page):
    missing = [
        f"{module}.{name}"
        for module, name in named(page.read_text())
        if not (ROOT / f"{module}.py").is_file() or name not in names_of(ROOT / f"{module}.py")
    ]

    assert missing == []


def test_the_walkthrough_names_functions_of_every_process():
    folders = {module.partition("/")[0] for module, _ in named(WALKTHROUGH)}

    assert {"master", "ps", "worker", "runtime", "data"} <= folders


@pytest.mark.parametrize(
    "way", ["Where tasks come from", "One task", "One pull", "One gradient", "One preemption"]
)
def test_a_way_of_the_walkthrough_passes_through_a_dozen_files_at_most(way):
    modules = {module for module, _ in named(section(WALKTHROUGH, way))}

    assert 5 <= len(modules) <= 12, sorted(modules)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    beside = (ROOT, page.parent)
    missing = [
        code
        for code in inline_code(page.read_text())
        if "/" in code.rstrip("/")
        and _FILE.fullmatch(code)
        and code.partition("/")[0] in {path.name for path in ROOT.iterdir()}
        and not any((folder / code).exists() for folder in beside)
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_tests_that_a_page_names_exist(page):
    named_here = [code for code in inline_code(page.read_text()) if re.fullmatch(r"test_\w+", code)]

    assert set(named_here) - names_of_tests() == set()


def test_files_that_the_code_names_exist():
    tops = {path.name for path in ROOT.iterdir()}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for top in (*FOLDERS, "tests", "benchmarks")
        for path in sorted((ROOT / top).rglob("*.py"))
        for name in re.findall(r"\b(?:\w+/)+\w+\.(?:py|md|proto)\b", path.read_text())
        if name.partition("/")[0] in tops and not (ROOT / name).exists()
    ]

    assert missing == []


def test_the_readme_has_at_most_10_kb():
    assert len(README.encode()) <= 10_000


def test_the_map_says_what_each_module_says():
    made = runpy.run_path(str(ROOT / "docs/make_map.py"))["page"]()

    assert (ROOT / "docs/map.md").read_text() == made, "run: make map"


def test_every_folder_that_is_installed_is_in_the_map():
    mapped = re.findall(r"^## ([\w/]+)/$", (ROOT / "docs/map.md").read_text(), re.MULTILINE)

    assert {folder.replace(".", "/") for folder in FOLDERS} - set(mapped) == set()


@pytest.mark.parametrize("name", ["nn", "nn.preprocess", "adaptive", "launch", "goodput"])
def test_every_public_name_is_in_the_page_of_its_module(name):
    text = (ROOT / f"docs/api/{name.rpartition('.')[2]}.md").read_text()
    public = importlib.import_module(f"edl.{name}").__all__

    assert sorted(public) == sorted(re.findall(rf"^::: edl\.{name}\.(\w+)$", text, re.MULTILINE))


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    shown = set(re.findall(r"[\w/-]+\.md$", navigation, re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}

    assert pages - shown == set()


def test_every_decision_is_in_their_list():
    folder = ROOT / "docs/adr"
    listed = re.findall(
        r"^\| \d+ \| \[(.+)\]\((.+)\) \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    titles = {page.name: page.read_text().partition("\n")[0] for page in folder.glob("0*.md")}

    assert titles == {name: f"# {int(name[:4])}. {title}" for title, name in listed}


def test_the_glossary_is_in_order_and_explains_each_word_once():
    words = re.findall(r"^\| (.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[1:]

    assert words == sorted(set(words))


def test_floors_of_the_architecture_are_those_that_import_linter_holds():
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    layers = config["importlinter:contract:floors"]["layers"].replace("edl.", "").split("\n")
    architecture = (ROOT / "docs/architecture.md").read_text()
    ((_, block),) = _FENCE.findall(section(architecture, "Floors"))

    assert [layer for layer in layers if layer] == block.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    text = _FENCE.sub("", page.read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = page.parent / path if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)

    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def known_flags() -> set[str]:
    flags = {f"--{name}" for name in spellings()}
    flags |= {f"--no_{knob.name}" for knob in knobs() if knob.kind is bool}
    flags.add("--help")
    commands: list[click.Command] = [cli.cli]
    while commands:
        command = commands.pop()
        flags |= {
            o.replace("-", "_").replace("__", "--", 1) for p in command.params for o in p.opts
        }
        commands += getattr(command, "commands", {}).values()
    return flags


# The map has what modules say, also of flags that are not for people.
TOLD = [page for page in PAGES if page.name != "map.md"]


@pytest.mark.parametrize("page", TOLD, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_flags_of_edl_that_a_page_shows_exist(page):
    text = page.read_text()
    shells = [block for _, block in _FENCE.findall(text)]
    lines = [line for block in shells for line in block.replace("\\\n", " ").splitlines()]
    commands = [line for line in lines if re.match(r"\s*(\$ )?edl ", line)]
    # The first column of the map from ElasticDL holds ElasticDL's own flags.
    theirs = re.compile(r"^\| `--[^|]*\|" if page.name == "elasticdl.md" else "(?!)", re.MULTILINE)
    prose = theirs.sub("|", text)
    commands += [code for code in inline_code(prose) if re.match(r"edl |--\w", code)]
    flags = {
        f.replace("-", "_").replace("__", "--", 1)
        for c in commands
        for f in re.findall(r"(?<!\S)--[\w-]+", c)
    }

    assert flags - known_flags() == set()


def test_exit_codes_of_the_page_are_those_of_the_command_line():
    told = CliRunner().invoke(cli.cli, ["train", "--help"]).output.partition("Exit codes:")[2]
    of_cli = re.findall(r"^\s*(\d+) ", told, re.MULTILINE)

    assert of_cli
    assert of_cli == re.findall(r"^\| (\d+) \|", section(CLI, "Exit codes"), re.MULTILINE)


def test_callbacks_of_the_contract_are_documented():
    documented = re.findall(r"^\| `(on_\w+)\(", MODEL_ZOO, re.MULTILINE)

    assert sorted(CALLBACKS) == sorted(documented)


def test_tables_of_data_are_those_that_the_code_makes():
    text = (ROOT / "docs/data.md").read_text()

    assert data_tables.page(text) == text, "run: python tests/tools/data_tables.py"


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    prepare("nycflights13-small", folder / "data", echo=lambda text: None)
    return folder


@pytest.fixture
def example(flights, monkeypatch):
    """Make a folder with the example and the plain loop of docs/model-zoo.md, and their data."""
    definition, loop = [block for kind, block in _FENCE.findall(MODEL_ZOO) if kind == "python"]
    (flights / "late_flights.py").write_text(definition)
    (flights / "loop.py").write_text(loop)
    monkeypatch.chdir(flights)
    monkeypatch.syspath_prepend(flights)
    yield flights
    sys.modules.pop("late_flights", None)


def test_complete_example_is_a_sound_definition(example):
    reader = open_reader("data/nycflights13-small/train.npz")
    (source,) = reader.sources()

    findings = check_definition(
        load_definition("late_flights.py"), reader.read(source.name, 0, 256)
    )

    assert [finding for finding in findings if finding.level != "ok"] == []


def test_plain_loop_over_the_complete_example_learns(example):
    losses = runpy.run_path("loop.py")["losses"]

    assert sum(losses[-10:]) < sum(losses[:10])
