"""The engine on a CUDA device: kernels, which are imported only there, and plans, which are NumPy."""
