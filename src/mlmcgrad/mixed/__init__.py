"""Mixed-effects models: formulas and data, families.

Formulas need the extra `mixed`: pip install 'mlmcgrad[mixed]'.
"""
