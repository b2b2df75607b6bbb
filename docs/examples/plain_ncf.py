"""Neural collaborative filtering on MovieLens as one would write it for one process.

    python docs/examples/plain_ncf.py [--ratings ml-1m/ratings.dat]

adaptive_ncf.py is its port: compare the two.
"""

from __future__ import annotations

import argparse

import torch
from ncf import Interactions, NeuMF, hits, ratings
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ratings", help="u.data, ratings.dat or ratings.csv of MovieLens")
    arguments.add_argument("--epochs", type=int, default=10)
    given = arguments.parse_args()

    train = Interactions(ratings(given.ratings))
    test = train.test()
    train_loader = DataLoader(train, batch_size=256, shuffle=True)
    test_loader = DataLoader(test, batch_size=256)
    model = NeuMF(train.users, train.items)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(given.epochs):
        train.draw(epoch)
        for users, items, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(users, items), labels.float()
            )
            loss.backward()
            optimizer.step()
        hit = 0
        with torch.no_grad():
            for users, items in test_loader:
                hit += hits(model(users[:, None].expand_as(items), items))
        print(f"epoch {epoch}: hit rate {hit / len(test):.4f}")


if __name__ == "__main__":
    main()
