"""The serve room: predictions over HTTP, a page, a store of predictions and outcomes, and what is learned from them.

records    the two nouns that are kept: `Prediction` and `Outcome`, and the `Store` that keeps them
store/     SQLite and PostgreSQL
learning/  the correction of a prediction by the outcomes of a cluster's other jobs
http/      the server: routes, tokens, limits, workers
page/      the web page, as static files
"""
