"""Private: devices, seeds, CUDA graphs, splitting to fit memory, isolation of a model, distribution."""
