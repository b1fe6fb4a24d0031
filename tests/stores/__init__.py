"""Tests of sluicegate.stores."""
