"""The board: predicted against measured on published jobs, every row held out, with a twin that is blind to precision.

takes     the published table and the fit of whole steps
gives     docs/accuracy.md, its picture and the table between README's markers
knows not how a step is predicted or factors are fitted
"""
