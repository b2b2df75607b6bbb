"""A small transformer that learns a made-up text: AdaptDL's example with its BPTT iterator.

    python docs/examples/adaptive_transformer.py
    torchrun --nproc-per-node 2 docs/examples/adaptive_transformer.py --autoscale-bsz

The text is a walk over 20 words, each followed by one of 3: who knows them has a perplexity of 3.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

import edl.adaptive as adl
from edl.adaptive.iterator import AdaptiveBPTTIterator

WORDS = 20


def text(length: int, seed: int) -> torch.Tensor:
    """Return a text, int64[length]."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (length,), generator=generator)
    return (steps * steps).cumsum(0) % WORDS


class Transformer(nn.Module):
    """Scores [rows, columns, WORDS] of the next word, of words [rows, columns]."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, size)
        layer = nn.TransformerEncoderLayer(size, nhead=2, dim_feedforward=32, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.decoder = nn.Linear(size, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(words))
        return self.decoder(self.layers(self.encoder(words), mask))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--words", type=int, default=20_000)
    arguments.add_argument("--autoscale-bsz", action="store_true")
    given = arguments.parse_args()

    adl.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    net = Transformer()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
    net = adl.AdaptiveDataParallel(net, optimizer, schedule)
    train = AdaptiveBPTTIterator(
        text(given.words, 0),
        batch_size=16,
        bptt_len=20,
        max_batch_size=64 if given.autoscale_bsz else None,
        local_bsz_bounds=(4, 32) if given.autoscale_bsz else None,
    )
    valid = AdaptiveBPTTIterator(text(given.words // 10, 1), batch_size=16, bptt_len=20)

    def loss_of(batch):
        return nn.functional.cross_entropy(net(batch.text).flatten(0, 1), batch.target.flatten())

    for epoch in adl.remaining_epochs_until(given.epochs):
        for batch in train:
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
        schedule.step()
        stats = adl.Accumulator()
        with torch.no_grad():
            for batch in valid:
                words = batch.target.numel() if valid.weight else 0
                stats += {"loss": loss_of(batch).item() * words, "words": words}
        with stats.synchronized():
            print(f"epoch {epoch}: perplexity {math.exp(stats['loss'] / stats['words']):.3f}")


if __name__ == "__main__":
    main()
