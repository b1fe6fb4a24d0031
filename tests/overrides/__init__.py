"""Tests of what operators set while an application runs."""
