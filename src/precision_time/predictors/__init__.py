"""Predictors under one interface, fitted to measured jobs: the simulator and those that others published.

interface.py   what a predictor is: fit, predict, save and load, cost
registry.py    their names and classes
"""
