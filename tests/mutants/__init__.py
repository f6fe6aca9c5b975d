"""Mutation testing: `make mutants` plants small bugs in the mathematics; a test must see each.

`changes.py` makes the bugs, `record.py` finds the tests that call a function, `judge.py` runs these
against one bug after the other; `modules.py` says which modules and tests, and `equivalent.toml`
names the changes that no test can see, with the reason.
"""
