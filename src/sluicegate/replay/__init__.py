"""Replay: past traffic through the engine, at the times of its log, and limits proposed from it.

`traffic.py` has the columns that every log is read into, `result.py` has what a replay says.
"""
