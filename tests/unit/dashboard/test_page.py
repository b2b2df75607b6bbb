"""The page's files: small, of one form, nothing becomes markup or leaves the origin."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from edl.dashboard.single_file import single_file

PAGE = Path(__file__).parents[3] / "dashboard" / "page"
MODULES = sorted(path for path in PAGE.glob("*.js") if not path.name.startswith("uPlot"))
VENDORED = {  # of the tarball uplot-1.6.32 of the npm registry
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
IMPORT = re.compile(r'import \{[^}]*\} from "\./([\w.-]+)";')
EXPORT = re.compile(r"export (async )?(function|class|const) \w+")


def snapshot(**more):
    return {"schema": "edl-dashboard-1", "status": {"job_name": "demo"}, **more}


def test_the_page_is_at_most_120_kb_gzipped():
    sizes = [len(gzip.compress(path.read_bytes())) for path in PAGE.iterdir()]

    assert sum(sizes) <= 120_000


@pytest.mark.parametrize("name", VENDORED)
def test_what_is_others_work_is_as_they_have_released_it(name):
    assert VENDORED[name] == hashlib.sha256((PAGE / name).read_bytes()).hexdigest()


def test_modules_have_the_form_that_a_single_file_is_made_of():
    lines = [line for path in MODULES for line in path.read_text().splitlines()]

    imports = [line for line in lines if re.match(r"\s*import\b", line)]
    exports = [line for line in lines if re.match(r"\s*export\b", line)]
    assert len(imports) > 20
    assert [] == [line for line in imports if not IMPORT.fullmatch(line)]
    assert [] == [line for line in exports if not EXPORT.match(line)]
    assert [] == [line for line in imports if " as " in line]


def test_nothing_becomes_markup_or_code():
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function"
    ways += r"|createContextualFragment|srcdoc|setAttribute\(\"style\"|javascript:"

    assert [] == [path.name for path in MODULES if re.search(ways, path.read_text())]


def test_nothing_is_asked_of_another_origin():
    files = [*MODULES, PAGE / "index.html", PAGE / "app.css", PAGE / "uPlot.min.css"]

    assert [] == [path.name for path in files if re.search(r"https?://|url\(", path.read_text())]


def test_the_csp_finds_no_script_or_style_in_the_markup():
    page = (PAGE / "index.html").read_text()

    assert [] == re.findall(r"<style|style=|\bon\w+=|<script(?![^>]*\bsrc=)", page)
    assert '<meta name="edl-csrf" content="">' in page  # where the server puts its value


def test_a_single_file_has_all_of_the_page_and_refers_to_nothing():
    page = single_file(snapshot())

    assert [] == re.findall(r"<link|<script[^>]*src=|^import |^export ", page, re.MULTILINE)
    assert {f'modules["{path.name}"] =' for path in MODULES} == set(
        re.findall(r'^modules\["[\w.-]+"\] =', page, re.MULTILINE)
    )
    assert page.count("<style>") == 2


def test_a_text_of_the_job_ends_no_element_of_a_single_file():
    hostile = "</script><script>alert(1)</script><!--"

    page = single_file(snapshot(events=[{"id": 1, "t": 0.0, "text": hostile}]))

    assert hostile not in page
    data = re.search(r'id="edl-snapshot">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["events"][0]["text"] == hostile
    assert page.count("</script>") == 3  # the data, uPlot, the page's own


def test_a_module_comes_after_those_that_it_needs():
    page = single_file(snapshot())
    at = {name: page.index(f'modules["{name}"] =') for name in (path.name for path in MODULES)}

    for path in MODULES:
        for needed in IMPORT.findall(path.read_text()):
            assert at[needed] < at[path.name]
