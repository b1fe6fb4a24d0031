"""The frameworks' own test suites, run plain and with sluicegate inserted: what passes plain must pass with it.

`sources` fetches the tests of the installed versions, `runs` has the command of each suite, `inside` runs in the
process of the tests, `outcomes` compares two runs, and `excused` lists the tests that may fail. `python -m suites` runs
it all.
"""
