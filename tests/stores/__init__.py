"""Tests of headgate.stores."""
