"""Config registries of torchtitan: Python text that is parsed and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_time.errors import DataError
from precision_time.job import Job
from precision_time.job.importers import read_import
from precision_time.job.importers.recognise import import_text

REGISTRY = """
from torchtitan.config import ActivationCheckpointConfig, ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from . import model_registry

raise SystemExit("this text is not run")


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-8B",
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective"),
    )


def llama3_8b_long() -> Trainer.Config:
    config = llama3_8b()
    config.training.seq_len = 16384
    config.parallelism = ParallelismConfig(context_parallel_degree=2, data_parallel_shard_degree=-1)
    return config


def llama3_70b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("70B"),
        model_converters=ModelConvertersContainer.Config(converters=[Float8LinearConverter.Config(recipe_name="rowwise")]),
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=100, novel=3),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, enable_async_tensor_parallel=True),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        compile=CompileConfig(enable=True),
    )


def worked_out() -> Trainer.Config:
    return Trainer.Config(training=TrainingConfig(steps=10 * STEPS))


def helper():
    return 3
"""


def job(folder: Path, function: str) -> Job:
    path = folder / "config_registry.py"
    path.write_text(REGISTRY)
    return Job.from_dict(read_import(f"{path}:{function}").job_fields({"gpus": 64}))


def test_a_config_is_read_and_not_run(tmp_path: Path) -> None:
    found = job(tmp_path, "llama3_8b")
    assert (found.model, found.batch_size, found.input["seq_len"]) == ("llama3-8b", 2, 8192)
    assert (found.precision, found.recompute, found.framework) == ("bf16-master", "selective", "torchtitan")
    assert (found.run.steps, found.run.dataset) == (1000, "c4")


def test_a_config_that_changes_another(tmp_path: Path) -> None:
    found = job(tmp_path, "llama3_8b_long")
    assert (found.model, found.input["seq_len"], found.layout_spec.cp, found.batch_size) == ("llama3-8b", 16384, 2, 2)


def test_converters_and_degrees(tmp_path: Path) -> None:
    found = job(tmp_path, "llama3_70b")
    assert (found.model, found.precision, found.layout_spec.tp) == ("llama3-70b", "fp8-rowwise", 8)
    assert (found.recompute, found.execution) == ("full", "compile")
    imported = read_import(f"{tmp_path}/config_registry.py:llama3_70b")
    assert "not understood" in imported.not_taken["training.novel"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("", "has 4 configs: name one as config_registry.py:FUNCTION, for example llama3_8b"),
        (":llama3", "'llama3' is none of them; nearest: llama3_8b"),
        (":helper", "'helper' is none of them"),
        (":worked_out", "training.steps must be a whole number .* not 'a value that is worked out when the file runs'"),
    ],
)
def test_what_is_refused(function: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        import_text(REGISTRY, f"config_registry.py{function}")


def test_text_that_python_does_not_read_is_refused() -> None:
    for text in ("def f(:\n", "def f():\n    return " + "(" * 5000, "def f():\n    f()\n"):
        with pytest.raises(DataError, match=r"no Python text|has 0 configs"):
            import_text(f"# torchtitan X.Config(\n{text}", "a.py")
