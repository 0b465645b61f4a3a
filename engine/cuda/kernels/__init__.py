"""Triton kernels of one step. Every row's arithmetic depends on its own text, and on no other row of the step."""
