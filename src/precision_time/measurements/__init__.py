"""Tables of measured jobs, read by fits, anchors and `evaluate`: each row is a job and its measured step time.

takes     a CSV file in the measurement schema (docs/evaluate.md)
gives     a `Table` of `Row`s, each with its `Job`, or the reason why it has none
knows not what is predicted for a row
"""
