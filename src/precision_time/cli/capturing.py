"""The command `capture`: a model of the user's own, traced into a file."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from precision_time.checks import show
from precision_time.cli.jobs import job_flags, job_of
from precision_time.cli.outputs import check_outputs
from precision_time.cli.parser import UsageError
from precision_time.job.code import is_code
from precision_time.job.precision import parse_precision
from precision_time.reading import to_json


def capture(options: Namespace) -> tuple[dict[str, Any], str]:
    """For JSON, and as text; writes the file."""
    from precision_time.capture.posted_graph import captured
    from precision_time.report.write import write_whole

    if options.output is None:
        raise UsageError("capture writes a file; name it, for example --output graph.json")
    flags = job_flags(options)
    names = flags.pop("precision", None)
    job = job_of(options.source, flags, allow_code=options.allow_code)
    if not is_code(job.model):
        raise UsageError(
            f"model {show(job.model)} is no Python file; capture takes FILE.py:FUNCTION, and a server knows the models "
            "of the zoo by name"
        )
    check_outputs(options, [job])
    precisions = [parse_precision(name) for name in names] if names else [job.precision_spec]
    found = captured(job, precisions)
    content = found.to_dict()
    write_whole(options.output, to_json(content, ensure_ascii=False) + "\n")
    told = {
        "file": options.output,
        "digest": content["digest"],
        "batch_size": found.batch_size,
        "operators": {regime: len(graph.calls) for regime, graph in found.graphs.items()},
        "parameters": next(iter(found.graphs.values())).parameter_count,
    }
    counts = ", ".join(f"{count:,} operators in {regime} precision" for regime, count in told["operators"].items())
    return told, f"{options.output}: {counts}, batch size {found.batch_size}, {told['parameters']:,} parameters"
