"""The page with one job's data in one file, which opens from a disk and needs no server.

The page's modules import each other by relative names, which a browser does not follow in a file
that is opened from a disk. So they are put into one script, each as a function that returns what it
exports, in the order in which they need each other. Their form is held by a test: imports are
`import { a, b } from "./x.js";`, exports stand before `function`, `class` or `const`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common import finite

PAGE = Path(__file__).parent / "page"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LINKS = re.compile(r'^<link rel="(?:icon|stylesheet)" .*>\n', re.MULTILINE)
_SCRIPTS = re.compile(r"^<script .*></script>\n", re.MULTILINE)


def single_file(snapshot: Mapping[str, Any]) -> str:
    """Return the page as one HTML text that shows this snapshot and asks nobody for anything."""
    styles = "".join(_LINKS.findall(_text("index.html")))
    names = re.findall(r'href="page/([\w.-]+\.css)"', styles)
    head = [f"<style>\n{_text(name)}</style>\n" for name in names]
    # In JSON a "<" stands in texts only, where its escape means the same: none ends the element.
    data = finite.dumps(snapshot).replace("<", "\\u003c")
    head += [f'<script type="application/json" id="edl-snapshot">{data}</script>\n']
    head += [f"<script>\n{_text('uPlot.iife.min.js')}</script>\n"]
    head += [f'<script type="module">\n{_bundle("app.js")}</script>\n']
    page = _SCRIPTS.sub("", _LINKS.sub("", _text("index.html")))
    return page.replace("</head>\n", "".join(head) + "</head>\n")


def _bundle(first: str) -> str:
    """Return one script that does what the module `first` does with all that it imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _text(name)
        for _, needed in _IMPORT.findall(text):
            add(needed)
        done[name] = _wrapped(name, text)

    add(first)
    return "const modules = {};\n" + "".join(done.values())


def _wrapped(name: str, text: str) -> str:
    exported = ", ".join(found[1] for found in _EXPORT.findall(text))
    text = _IMPORT.sub(lambda found: f'const {{{found[1]}}} = modules["{found[2]}"];', text)
    text = _EXPORT.sub(lambda found: found[1], text)
    return f'modules["{name}"] = (() => {{\n{text}return {{ {exported} }};\n}})();\n'


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
