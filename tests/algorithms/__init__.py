"""Tests of headgate.algorithms: laws, vectors, and the exact model."""
