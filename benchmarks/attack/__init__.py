"""Attacks on the program: mutated inputs, and relations that must hold between related jobs.

takes     seeds
gives     defects, by class, with the input that shows each; `benchmarks/results/attack.{json,md}`
run with  `python -m benchmarks.attack --inputs 20000 --jobs 5000 --seed 7`
"""
