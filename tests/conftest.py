"""Torch computes with one thread here, as in the package: more only get into each other's way on small tensors."""

import sys

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_main_module():
    """Streamlit's AppTest leaves its script as the main module, which new processes would then run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
