"""Settings of other programs as fields of a job.

Takes the files with which training is started: Hugging Face TrainingArguments, configs of accelerate, LightningCLI,
DeepSpeed, torchtitan, llm-foundry, Axolotl and LLaMA-Factory, recipes of NeMo and Megatron-Bridge, Megatron arguments,
sbatch scripts and launch commands. Gives an `Imported`: job fields, and for every other setting the reason why it is
not one. Runs nothing and reads no pickle.
"""

from precision_time.job.importers.accelerate import from_accelerate
from precision_time.job.importers.axolotl import from_axolotl
from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.huggingface import from_huggingface
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.lightning import from_lightning
from precision_time.job.importers.llama_factory import from_llama_factory
from precision_time.job.importers.llm_foundry import from_llm_foundry
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.merge import merged
from precision_time.job.importers.nemo import from_nemo
from precision_time.job.importers.recognise import read_import, read_imports
from precision_time.job.importers.torchtitan import from_torchtitan

__all__ = [
    "Imported", "from_accelerate", "from_axolotl", "from_deepspeed", "from_huggingface", "from_lightning",
    "from_llama_factory", "from_llm_foundry", "from_megatron", "from_nemo", "from_torchtitan", "merged", "read_import",
    "read_imports",
]  # fmt: skip
