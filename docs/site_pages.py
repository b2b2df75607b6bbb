"""Show pages from outside docs/, and notebooks, in the site too, and lead links where they belong.

A page links to others by their paths in the repository, which is what GitHub needs. In the site
such a link becomes one between pages. A link to a file that the site does not show keeps its text
only. A notebook becomes a page of its texts, cells and the outputs that are written in it.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # path in the repository: page of the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "k8s/manifests/README.md": "manifests.md",
}
PACKAGE = ROOT / ".cache/site/edl"
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^]]*)]\((?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_startup(**_: Any) -> None:
    """Link the package's folders where the API pages look for them.

    The repository itself will not do: whoever looks for modules in it would follow its own link
    `.pythonpath/edl -> ..` round and round.
    """
    shutil.rmtree(PACKAGE, ignore_errors=True)
    PACKAGE.mkdir(parents=True)
    for init in [ROOT / "__init__.py", *ROOT.glob("*/__init__.py")]:
        part = init if init.parent == ROOT else init.parent
        (PACKAGE / part.name).symlink_to(part)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text = of_notebook(json.loads(path.read_text()), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def of_notebook(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook's cells as a page, with a link to the notebook below its title."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        outputs = [each.get("text") or each["data"]["text/plain"] for each in cell["outputs"]]
        said = "".join("".join(each).rstrip() + "\n" for each in outputs)
        parts += [f"```text\n{said}```"] if said else []
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, f"<a href={name} download>As a notebook</a>", rest, *parts[1:]])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of one page, but for what stands in blocks of code."""
    del config, files  # MkDocs gives them by name
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: _link(link, page.file.src_uri), p) for p in parts[::2]]
    return "".join(parts)


def _link(link: re.Match[str], page: str) -> str:
    """Return a link of the page as the site needs it."""
    if "://" in link["path"] or link["path"].startswith("mailto:"):
        return link[0]
    here = {site: source for source, site in OUTSIDE.items()}.get(page, f"docs/{page}")
    source = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["path"]))
    if source not in OUTSIDE and not source.startswith("docs/"):
        return link["text"]
    shown = OUTSIDE.get(source, source[5:])
    if shown.endswith(".ipynb"):
        shown = f"{shown.removesuffix('.ipynb')}.md"
    target = posixpath.relpath(shown, posixpath.dirname(page) or ".")
    return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''})"
