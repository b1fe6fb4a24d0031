"""Tests of the decision about a request, whatever the framework."""
