"""The file of `--config`: settings by name, with their lines, which errors can point to."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UsageError
from .values import yaml_loader


def read(path: str, names: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Return {setting: (value, "file:line")} of the YAML file.

    `names` maps every accepted spelling (with underscores) to its setting. Raises UsageError for a
    file that cannot be read, a name that is unknown, and a setting that is given twice.
    """
    import yaml

    try:
        loader = yaml_loader()(Path(path).read_text(encoding="utf-8"))
        node = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read --config {path}: {error}.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path} must hold settings, one a line, as `name: value`.")
    found: dict[str, tuple[Any, str]] = {}
    for key, value in node.value:
        where = f"{path}:{key.start_mark.line + 1}"
        spelled = str(key.value)
        name = names.get(spelled.replace("-", "_"))
        if name is None:
            raise UsageError(f"{where}: there is no setting {spelled!r}{_near(spelled, names)}.")
        if name in found:
            raise UsageError(f"{where}: {spelled!r} is given already, at {found[name][1]}.")
        try:
            found[name] = (loader.construct_object(value, deep=True), where)
        except yaml.YAMLError as error:
            raise UsageError(f"{where}: {' '.join(str(error).split())}.") from error
    return found


def _near(spelled: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(spelled.replace("-", "_"), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else " (`edl train --help` lists them)"
