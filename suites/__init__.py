"""The frameworks' own test suites, run plain and with sluicegate inserted: what passes plain must pass with it.

`sources` fetches the tests of the installed versions, `runs` says how each suite is run, `inside` is what works in the
process of the tests, `outcomes` compares two runs, and `excused` names what may differ. `python -m suites` does it all.
"""
