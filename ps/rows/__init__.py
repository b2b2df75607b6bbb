"""An embedding store of one process: index, rows, optimizers and locks, without the network."""
