"""The server: routes, tokens, limits, processes that predict.

routes      one table of all routes: method, path, role, fields; `openapi` writes the document from it
app         the ASGI application: starlette's routing around the table
guard       what holds for every request: token, headers, log line, counts
service     what the routes answer from: pool, store, corrections, cache of replies
pool        processes that predict, each killed and replaced where a request takes too long or too much
worker      such a process; `answers` are the questions that it knows
safe_job    a job of a request, which may name no file and no code
server      the command `serve`: sockets, signals, uvicorn
"""
