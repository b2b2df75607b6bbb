"""The modes in which the modules of a model train: training, but for those that were frozen.

A part is frozen where model() has left it in evaluation mode and none of what it holds is trained:
`backbone.requires_grad_(False).eval()`. It stays in that mode, so its running statistics do not
move and it drops nothing out, as in a loop of one's own that puts it back after `model.train()`.
What is trained goes to training mode with the rest, in whatever mode a library has made it.
"""

from __future__ import annotations

from torch import nn

from .embedding import Embedding


class Modes:
    """The training modes of a model's modules, as they are when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._frozen = [
            module
            for part in model.modules()
            if _is_frozen(part)
            for module in part.modules()
            if not module.training
        ]
        self._is_put = False  # a library may have left parts in another mode than the whole

    def train(self) -> None:
        """Put the model into training mode, all but what is frozen."""
        if self._is_put and self._model.training:
            return
        self._model.train()
        for module in self._frozen:
            module.training = False
        self._is_put = True


def _is_frozen(part: nn.Module) -> bool:
    """Tell whether a module evaluates, and holds something of which nothing is trained."""
    if part.training or any(isinstance(module, Embedding) for module in part.modules()):
        return False
    parameters = list(part.parameters())
    holds = bool(parameters) or any(True for _ in part.buffers())
    return holds and not any(parameter.requires_grad for parameter in parameters)
