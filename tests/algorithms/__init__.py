"""Tests of sluicegate.algorithms: laws, vectors, and the exact model."""
