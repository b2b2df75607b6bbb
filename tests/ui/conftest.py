"""A browser for the page, and a server that plays jobs to it; without one tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ui.page_server import PageServer
from ui.story import Story

WIDE = {"width": 1440, "height": 900}
# Two frames: what was told by now is laid out, and painted.
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return Debian's chromium, driven by playwright."""
    why = "the page's tests need playwright: make test-ui"
    playwright = pytest.importorskip("playwright.sync_api", reason=why)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("the page's tests need a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def served() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


@pytest.fixture
def site(served: PageServer) -> Iterator[PageServer]:
    """Return the server of this process, as new."""
    yield served
    served.forget()


class Tabs:
    """The tabs of one browser, by how they look: one that is left is used again."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._idle: dict[str, list[Any]] = {}
        self._used: list[tuple[str, Any]] = []

    def open(self, how: dict[str, Any]) -> Any:
        kind = repr(sorted(how.items()))
        if idle := self._idle.get(kind):
            page = idle.pop()
        else:
            context = self._browser.new_context(**{"viewport": WIDE, **how})
            context.set_default_timeout(10_000)
            page = context.new_page()
        self._used.append((kind, page))
        return page

    def leave(self) -> None:
        """Leave all tabs that were opened; what they showed is gone, and what it had stored."""
        for kind, page in self._used:
            page.goto("about:blank")
            self._idle.setdefault(kind, []).append(page)
        self._used.clear()


@pytest.fixture(scope="session")
def tabs(browser: Any) -> Tabs:
    return Tabs(browser)


class Visitor:
    """Opens pages, and remembers what none of them may do."""

    def __init__(self, tabs: Tabs, site: PageServer) -> None:
        self._tabs = tabs
        self._site = site
        self._heard: list[tuple[Any, str, Any]] = []
        self.errors: list[str] = []
        self.strangers: list[str] = []  # requests off the origin
        self.forgives: tuple[str, ...] = ()  # of errors, those that the test itself brings about

    def __call__(self, path: str = "", *, url: str | None = None, **how: Any) -> Any:
        page = self._tabs.open(how)
        self._hear(page, "console", lambda told: told.type == "error" and self._fail(told.text))
        self._hear(page, "pageerror", lambda error: self._fail(str(error)))
        self._hear(page, "request", lambda request: self._look(request.url, url))
        page.goto(url or self._site.url + path)
        return page

    def _hear(self, page: Any, event: str, heard: Any) -> None:
        page.on(event, heard)
        self._heard.append((page, event, heard))

    def _fail(self, text: str) -> None:
        self.errors.append(text)

    def _look(self, url: str, own: str | None) -> None:
        if not url.startswith(own or self._site.url):
            self.strangers.append(url)

    def job(self, story: Story, **how: Any) -> Any:
        """Open the page of a job as it is now, and return when it is drawn."""
        self._site.put(story.snapshot())
        page = self(f"#/{story.name}", **how)
        page.wait_for_selector(".health .sentence:not(:empty)")
        page.evaluate(DRAWN)
        return page

    def leave(self) -> None:
        for page, event, heard in self._heard:
            page.remove_listener(event, heard)
        self._tabs.leave()


@pytest.fixture
def visit(tabs: Tabs, site: PageServer) -> Iterator[Visitor]:
    """Open pages; after the test none may have told an error or asked anybody else."""
    visitor = Visitor(tabs, site)
    yield visitor
    visitor.leave()
    left = [error for error in visitor.errors if not any(f in error for f in visitor.forgives)]
    assert [] == left
    assert [] == visitor.strangers


@pytest.fixture(scope="session")
def axe() -> str:
    """Return axe-core's script, which `make test-ui` has from the npm registry."""
    path = os.environ.get("EDL_AXE", "")
    if not path or not Path(path).is_file():
        pytest.skip("this test needs axe-core: make test-ui")
    return Path(path).read_text(encoding="utf-8")


Found = Callable[..., list[str]]
# Rows as those before them: of a table and of the list of events the first few are looked at.
ALIKE = ["tbody tr:nth-child(n+5)", "li.event:nth-child(n+7)"]


@pytest.fixture
def findings(axe: str) -> Found:
    """Return what axe finds in a page that is serious or critical, in words."""

    def look(page: Any, contrast: bool = True) -> list[str]:
        page.evaluate(axe)  # by the debugger, which the CSP lets pass
        result = page.evaluate(
            """([exclude, enabled]) => axe.run({exclude}, {
                resultTypes: ["violations"], preload: false,
                rules: {"color-contrast": {enabled}},
            })""",
            [ALIKE, contrast],
        )
        return [
            f"{found['id']}: {node['target']} {node['failureSummary']}"
            for found in result["violations"]
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"]
        ]

    return look
