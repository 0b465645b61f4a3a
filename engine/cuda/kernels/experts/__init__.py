"""Kernels of mixture-of-experts layers."""
