"""The buffers of a model around a forward pass: what it changed of them, and taking that back.

A buffer is changed where its bits are, so one that the forward leaves alone may hold anything:
infinities, NaN, whole numbers, truth values. A change is a difference, which other workers' are
added to or averaged with: of floats it must be finite. The forward may also put another tensor in a
buffer's place; one that is not persistent may even get another shape, and is then the worker's own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.errors import DefinitionError

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_DOUBLE = (torch.float64, torch.complex128)


class NonFinite(ArithmeticError):
    """The loss, a gradient or the change of a buffer is NaN or infinite."""


def plain_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that can be copied and compared: all but the sparse ones."""
    return [b for b in model.buffers() if b.layout == torch.strided]


class Buffers:
    """The plain buffers of a model (of `names`, where that is given), in the order of the model's.

    `begin` before the forward, `changes` after it; `restore` takes back what it did.
    """

    def __init__(self, model: nn.Module, names: Collection[str] | None = None) -> None:
        persistent = set(model.state_dict(keep_vars=True))
        self.names: list[str] = []
        self._places: list[tuple[nn.Module, str, bool]] = []
        seen: set[int] = set()
        for path, module in model.named_modules():
            for key, buffer in module._buffers.items():
                name = f"{path}.{key}" if path else key
                if buffer is None or id(buffer) in seen or buffer.layout != torch.strided:
                    continue
                seen.add(id(buffer))
                if names is None or name in names:
                    self.names.append(name)
                    self._places.append((module, key, name in persistent))
        self._held: list[Tensor] = []
        self.before: list[Tensor] = []

    def now(self) -> list[Tensor]:
        """Return the buffers that are in the model at the moment."""
        return [module._buffers[key] for module, key, _ in self._places]  # type: ignore[misc]

    def begin(self) -> None:
        """Remember the buffers as they are."""
        self._held = self.now()
        self.before = [buffer.detach().clone() for buffer in self._held]

    def changed(self) -> list[bool]:
        """Tell of each buffer whether it is other than it was.

        Raises DefinitionError where a persistent one has another shape or type.
        """
        return _differ(self._like_before(), self.before)

    def changes(self) -> list[Tensor | None]:
        """Return the differences, None where there is none.

        They are of float32 or float64, and of whole numbers or truth values as they are. Raises
        NonFinite, and as `changed`.
        """
        there = self._like_before()
        changes = [
            _change(now, was) if differs and now is not None else None
            for now, was, differs in zip(
                there, self.before, _differ(there, self.before), strict=True
            )
        ]
        bad = [change is not None and ~torch.isfinite(change).all() for change in changes]
        for number, is_bad in enumerate(_told(bad)):
            if is_bad:
                now, change = there[number], changes[number]
                assert now is not None
                assert change is not None
                at = ~torch.isfinite(change)
                was = _real(self.before[number])[at][0]
                raise NonFinite(
                    f"the forward changes the buffer {self.names[number]!r} from {float(was):g} to "
                    f"{float(_real(now)[at][0]):g}, and workers' changes add up only where they "
                    "are finite: begin with a finite value (1e30 for infinity), and keep it finite"
                )
        return changes

    @torch.no_grad()
    def restore(self, values: Sequence[Tensor] | None = None) -> None:
        """Put the buffers back as they were, or as other values are.

        What is so already is not written to.
        """
        there = self._like_before(anyway=True)
        whole = self.before if values is None else values
        held = [None if now is None else mine for now, mine in zip(there, self._held, strict=True)]
        for (module, key, _), mine, value, differs in zip(
            self._places, held, whole, _differ(held, whole), strict=True
        ):
            if mine is not None:
                module._buffers[key] = mine
                if differs:
                    mine.copy_(value)

    def snapshot(self) -> list[Tensor]:
        """Copy the buffers, for `restore`."""
        return [
            was if now is None else now.clone()
            for now, was in zip(self._like_before(), self.before, strict=True)
        ]

    def _like_before(self, anyway: bool = False) -> list[Tensor | None]:
        """Return the buffers of now; None for one that is the worker's own from now on."""
        found: list[Tensor | None] = []
        for name, (module, key, persistent), was in zip(
            self.names, self._places, self.before, strict=True
        ):
            now = module._buffers.get(key)
            if now is not None and (now.shape, now.dtype) == (was.shape, was.dtype):
                found.append(now.detach())  # a forward may have left its graph behind
            elif persistent and not anyway:
                raise DefinitionError(
                    f"the forward makes {_shown(now)} of the buffer {name!r}, which was "
                    f"{_shown(was)}: what is saved with the model keeps its shape and type; "
                    "register it with persistent=False if it need not be saved"
                )
            else:
                found.append(was if persistent else None)
        return found


@torch.no_grad()
def add_changes(buffers: Sequence[Tensor], changes: Sequence[Tensor | None]) -> None:
    """Add differences; the bits of what did not change stay."""
    for buffer, change in zip(buffers, changes, strict=True):
        if change is None or change.shape != _real(buffer).shape:  # or it is this worker's own
            continue
        if buffer.dtype == torch.bool:
            buffer ^= change
        elif _is_number(buffer):
            places, wide = _real(buffer), _real(buffer).to(change.dtype)
            places.copy_(torch.where(change != 0, wide + change, wide))
        else:
            buffer += change.to(buffer.dtype)


def mean_changes(
    buffers: Sequence[Tensor],
    changes: Sequence[Tensor | None],
    changed: Sequence[bool],
    share: float,
) -> list[Tensor | None]:
    """Return the mean over the members of torch's default group, each with its share.

    Of whole numbers and truth values it is rounded. `changed`: of which any member has changes, the
    same for all.
    """
    some = [number for number, is_changed in enumerate(changed) if is_changed]
    means: list[Tensor | None] = [None] * len(buffers)
    if not some:
        return means
    wide = torch.float64 if any(buffers[n].dtype in _DOUBLE for n in some) else torch.float32
    parts = []
    for number in some:
        change = changes[number]
        if change is None or not share:
            like = _real(buffers[number])
            parts.append(torch.zeros(like.numel(), dtype=wide, device=like.device))
        else:
            parts.append(change.reshape(-1).to(wide) * share)
    flat = torch.cat(parts)
    dist.all_reduce(flat)
    sizes = [len(part) for part in parts]
    for number, part in zip(some, torch.split(flat, sizes), strict=True):
        buffer = buffers[number]
        mean = part.view(_real(buffer).shape)
        if buffer.dtype == torch.bool:
            means[number] = mean >= 0.5
        else:
            means[number] = mean if _is_number(buffer) else mean.round().to(torch.int64)
    return means


def _change(now: Tensor, was: Tensor) -> Tensor:
    if now.dtype == torch.bool:
        return now ^ was
    if not _is_number(now):
        return now - was
    wide = torch.float64 if now.dtype in _DOUBLE else torch.float32
    new, old = _real(now), _real(was)
    change = new.to(wide) - old.to(wide)
    return change.masked_fill_(_bits(new) == _bits(old), 0.0)


def _differ(some: Sequence[Tensor | None], others: Sequence[Tensor]) -> list[bool]:
    """Tell of each tensor, where there is one, whether it has other bits."""
    return _told(
        [
            one is not None
            and (
                not torch.equal(_bits(one), _bits(other))
                if one.device.type == "cpu"
                else (_bits(one) != _bits(other)).any()
            )
            for one, other in zip(some, others, strict=True)
        ]
    )


def _told(flags: Sequence[bool | Tensor]) -> list[bool]:
    """Return the flags as truth values; those on a device are fetched together."""
    there = [flag for flag in flags if isinstance(flag, Tensor)]
    fetched = iter(torch.stack(there).tolist() if there else ())
    return [bool(next(fetched)) if isinstance(flag, Tensor) else flag for flag in flags]


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _bits(tensor: Tensor) -> Tensor:
    real = _real(tensor.resolve_conj() if tensor.is_complex() else tensor).contiguous()
    return real.view(_INTEGERS[real.element_size()])


def shape_of(tensor: Tensor) -> str:
    """Return a tensor's type and shape as text: float32[2, 3]."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _shown(value: Tensor | None) -> str:
    return "nothing" if value is None else shape_of(value)
