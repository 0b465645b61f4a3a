"""One thread for the arithmetic: tiny models gain nothing from more."""

import torch

torch.set_num_threads(1)
