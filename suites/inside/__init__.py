"""Modules that run in the process of a framework's tests: the recorders, and a module for each insertion."""
