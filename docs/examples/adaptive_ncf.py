"""plain_ncf.py, elastic, its batch by goodput: AdaptDL's example NCF.

    python docs/examples/adaptive_ncf.py [--ratings ml-1m/ratings.dat]
    torchrun --nproc-per-node 2 docs/examples/adaptive_ncf.py
    diff docs/examples/plain_ncf.py docs/examples/adaptive_ncf.py

Expect a hit rate of 0.65 on ml-100k after 6 epochs. AdaptDL's largest batch is 32,768, for ten
times the ratings.
"""

from __future__ import annotations

import argparse

import torch
from ncf import Interactions, NeuMF, hits, ratings
from torch import nn

import edl.adaptive as adl


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ratings", help="u.data, ratings.dat or ratings.csv of MovieLens")
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--largest", type=int, default=4096, help="batch")
    given = arguments.parse_args()

    adl.init_process_group("gloo")
    train = Interactions(ratings(given.ratings))
    test = train.test()
    train_loader = adl.AdaptiveDataLoader(train, batch_size=256, shuffle=True)
    train_loader.autoscale_batch_size(given.largest, local_bsz_bounds=(64, 2048))
    test_loader = adl.AdaptiveDataLoader(test, batch_size=256)
    model = NeuMF(train.users, train.items)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model = adl.AdaptiveDataParallel(model, optimizer)

    for epoch in adl.remaining_epochs_until(given.epochs):
        train.draw(epoch)
        for users, items, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(users, items), labels.float()
            )
            loss.backward()
            optimizer.step()
        sums = adl.Accumulator()
        with torch.no_grad():
            for users, items in test_loader:
                sums["hits"] += hits(model(users[:, None].expand_as(items), items))
        with sums.synchronized():
            if torch.distributed.get_rank() == 0:
                hit, batch = sums["hits"], train_loader.current_batch_size
                print(f"epoch {epoch}: hit rate {hit / len(test):.4f}, batch {batch}")


if __name__ == "__main__":
    main()
