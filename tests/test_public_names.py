"""The public names: growing one of these lists is a deliberate edit."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import precision_time
from precision_time import api
from precision_time.job.job import JOB_FIELDS, Job
from precision_time.job.run import RUN_FIELDS, Run


def test_public_names() -> None:
    names = ["Client", "Estimate", "Job", "PrecisionTimeError", "__version__", "compare", "predict", "predict_time"]
    assert precision_time.__all__ == names
    assert dir(precision_time) == sorted(names), "what completion in an interpreter offers"
    assert all(hasattr(precision_time, name) for name in names)


def test_predict_time_takes_every_field_of_the_job_by_name() -> None:
    expected = [name for name in (*JOB_FIELDS, *RUN_FIELDS) if name != "model"]
    assert list(api.JobFields.__annotations__) == expected
    parameters = inspect.signature(precision_time.predict_time).parameters
    assert list(parameters) == ["model", *expected]
    assert parameters["gpus"].annotation == "int"


def test_the_arguments_of_predict_time_are_described_as_the_flags_are() -> None:
    (fields,) = (node for node in ast.parse(inspect.getsource(api)).body if isinstance(node, ast.ClassDef))
    described = {}
    for name, text in zip(fields.body, fields.body[1:], strict=False):
        if isinstance(name, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(name.target, ast.Name)
            described[name.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    items = {item.name: item for noun in (Job, Run) for item in dataclasses.fields(noun)}
    helps = {name: items[name].metadata["meaning"] for name in (*JOB_FIELDS, *RUN_FIELDS)}
    assert described == {name: text for name, text in helps.items() if name != "model"}
