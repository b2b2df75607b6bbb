"""docs/cli.md lists every flag as common/settings.py has it. Run this file to write it anew."""

from pathlib import Path

import pytest

from edl.cli import main as cli
from edl.common.settings import knobs

pytestmark = pytest.mark.fast

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
MARK = "<!-- made from common/settings.py by `python tests/unit/cli/test_docs.py` -->\n"


def table() -> str:
    """Return the flags by section, as docs/cli.md has them."""
    lines: list[str] = []
    section = ""
    for knob in knobs():
        if knob.group != section:
            section = knob.group
            lines += ["", f"### {section}", "", "| flag | default | |", "|---|---|---|"]
        flags = ", ".join(f"`--{name}`" for name in (knob.name, *knob.aliases))
        choices = f" One of {', '.join(knob.choices)}." if len(knob.choices) > 1 else ""
        default = "" if knob.default in ("", None, {}) else f"`{str(knob.default).lower()}`"
        lines.append(f"| {flags} | {default} | {knob.help}{choices} |")
    return "\n".join(lines) + "\n"


def test_every_flag_is_documented_as_it_is() -> None:
    _, _, written = DOCS.read_text().partition(MARK)

    assert written == table()


def test_every_command_is_documented() -> None:
    text = DOCS.read_text()

    assert [] == [name for name in cli.cli.commands if f"`edl {name}" not in text]


if __name__ == "__main__":
    head, mark, _ = DOCS.read_text().partition(MARK)
    DOCS.write_text(head + mark + table())
