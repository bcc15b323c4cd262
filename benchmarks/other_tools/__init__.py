"""precision-time beside other predictors, on the same measured jobs: `python -m benchmarks.other_tools`.

Calculon and SimuMax run from a checkout of yours (--calculon DIR, --simumax DIR: their code then has your rights).
Without one, the report says so. A textbook formula needs neither. Writes benchmarks/results/other_tools.json and
other_tools.md; --rows FILE.csv writes every row.
"""
