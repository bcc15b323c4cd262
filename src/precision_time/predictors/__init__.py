"""The published predictors, side by side under one interface, fitted to measured jobs.

interface.py   what a predictor is: fit, predict, save and load, cost
registry.py    their names, and where each is found
"""
