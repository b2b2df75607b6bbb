"""Show the repository's pages outside docs/ in the site too, and lead all links where they belong.

A page links to others by their paths in the repository, which is what GitHub needs. In the site
such a link becomes one between pages. A link to a file that the site does not show keeps its text
only.
"""

from __future__ import annotations

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
    return files


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
    target = posixpath.relpath(OUTSIDE.get(source, source[5:]), posixpath.dirname(page) or ".")
    return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''})"
