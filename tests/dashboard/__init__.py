"""Tests of the page that operators look at."""
