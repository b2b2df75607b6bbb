"""The adaptive API: a training script of one's own that survives other numbers of replicas.

    import edl.adaptive as adl

    adl.init_process_group()
    loader = adl.AdaptiveDataLoader(dataset, batch_size=128, shuffle=True)
    net = adl.AdaptiveDataParallel(net, optimizer, scheduler)
    for epoch in adl.remaining_epochs_until(30):
        for inputs, targets in loader:
            ...

Names and modules are imported when they are used, so that what needs no torch imports none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accumulator import Accumulator as Accumulator
    from .checkpoint import State as State
    from .checkpoint import load_state as load_state
    from .checkpoint import save_all_states as save_all_states
    from .checkpoint import save_state as save_state
    from .data import AdaptiveDataLoader as AdaptiveDataLoader
    from .data import AdaptiveDataLoaderHelper as AdaptiveDataLoaderHelper
    from .data import AdaptiveDataLoaderMixin as AdaptiveDataLoaderMixin
    from .data import ElasticSampler as ElasticSampler
    from .data import current_dataloader as current_dataloader
    from .env import get_tensorboard_dir as get_tensorboard_dir
    from .epoch import current_epoch as current_epoch
    from .epoch import finished_epochs as finished_epochs
    from .epoch import remaining_epochs_until as remaining_epochs_until
    from .gradient_noise_scale import AdamGradientNoiseScale as AdamGradientNoiseScale
    from .gradient_noise_scale import GradientNoiseScale as GradientNoiseScale
    from .iterator import AdaptiveBPTTIterator as AdaptiveBPTTIterator
    from .parallel import AdaptiveDataParallel as AdaptiveDataParallel
    from .process_group import init_process_group as init_process_group
    from .scaling_rules import AdamScale as AdamScale
    from .scaling_rules import AdaScale as AdaScale
    from .scaling_rules import LEGWScale as LEGWScale
    from .scaling_rules import LinearScale as LinearScale
    from .scaling_rules import ScalingRuleBase as ScalingRuleBase
    from .scaling_rules import SqrtScale as SqrtScale

_MODULES = {
    "Accumulator": "accumulator",
    "State": "checkpoint",
    "load_state": "checkpoint",
    "save_all_states": "checkpoint",
    "save_state": "checkpoint",
    "AdaptiveDataLoader": "data",
    "AdaptiveDataLoaderHelper": "data",
    "AdaptiveDataLoaderMixin": "data",
    "ElasticSampler": "data",
    "current_dataloader": "data",
    "AdaptiveDataParallel": "parallel",
    "current_epoch": "epoch",
    "finished_epochs": "epoch",
    "remaining_epochs_until": "epoch",
    "get_tensorboard_dir": "env",
    "AdamGradientNoiseScale": "gradient_noise_scale",
    "GradientNoiseScale": "gradient_noise_scale",
    "AdaptiveBPTTIterator": "iterator",
    "init_process_group": "process_group",
    "AdamScale": "scaling_rules",
    "AdaScale": "scaling_rules",
    "LEGWScale": "scaling_rules",
    "LinearScale": "scaling_rules",
    "ScalingRuleBase": "scaling_rules",
    "SqrtScale": "scaling_rules",
}
_SUBMODULES = {
    *_MODULES.values(),
    "collective",
    "goodput",
    "profile",
}  # `import edl.adaptive` will do
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
