"""Places as settings spell them: paths, lists of paths, URLs, definitions."""

from __future__ import annotations

import os

# The setting that holds a command's data.
DATA = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}


def parts(path: str) -> list[str]:
    """Split a list of paths at its commas, unless there is a file of that very name."""
    return [path] if os.path.exists(path) else [part.strip() for part in path.split(",")]


def is_file(model_def: str) -> bool:
    """Return whether a definition is named by its file, not by its name in the zoo."""
    return model_def.endswith(".py") or "/" in model_def


def is_local(path: str) -> bool:
    """Tell whether a path is no URL."""
    return "://" not in path


def absolute(path: str) -> str:
    """Return a path from the root; URLs and "" as they are."""
    path = path.strip()
    return os.path.abspath(os.path.expanduser(path)) if path and is_local(path) else path
