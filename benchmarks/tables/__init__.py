"""Tables with natural clients: how near the default method comes to the optimum, and what others reach.

``python -m benchmarks.tables``; sources.py has the tables, cases.py the problems, reference.py their optima.
"""
