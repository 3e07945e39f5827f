"""Workloads: what clients do while a cluster is broken, and the final reads; one module each."""
