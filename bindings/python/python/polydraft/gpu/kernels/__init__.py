"""Triton kernels of `polydraft.gpu`, and `launch`, which queues them."""
