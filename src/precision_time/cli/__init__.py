"""The command line `precision-time`: parses arguments, calls one function of another room, prints its result.

main.py        entry point and exit codes
parser.py      the parser and its errors
arguments.py   the flags of every command; flags.py reads those of the job off its fields
old_names.py   former names of flags and values
commands.py    one function per command
"""
