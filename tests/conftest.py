"""Torch computes with one thread here, as in the package: more only get into each other's way on small tensors."""

import torch

torch.set_num_threads(1)
