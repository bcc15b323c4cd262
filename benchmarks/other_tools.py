"""precision-time beside Calculon, SimuMax and a textbook formula, on the same measured jobs:
`python benchmarks/other_tools.py measurements_llm.csv`.

Each tool is installed into a temporary environment from the package registry, at a pinned version whose hash is
checked, or run from a checkout of yours (--calculon DIR, --simumax DIR: their code then runs with your rights). Where
neither can be had the report says so and why, and the exit code is 0. Writes benchmarks/results/other_tools.json and
other_tools.md; --rows FILE.csv writes every row.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_time import Job, predict
from precision_time.cli.progress import Progress
from precision_time.errors import PrecisionTimeError
from precision_time.evaluation.fitted_rows import seen_by
from precision_time.fit.layouts import FACTORS, costs_of, usual
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.prediction import Anchoring
from precision_time.timing.constants import shipped

RESULTS = Path(__file__).parent / "results"
MFU = 0.4
"""Of the textbook formula, the same for every job: what a well-run job is usually said to reach."""
OURS, UNFITTED, TEXTBOOK = "precision-time", "precision-time, unfitted", "textbook"
SECONDS_PER_ROW = 120


@dataclass(frozen=True)
class Tool:
    """Another predictor: where it is from, what the registry has under its name, which jobs it can express."""

    name: str
    home: str
    package: str
    pinned: tuple[str, str] | None
    """Version and sha256 of a wheel that was read and found to be the tool; None: no such thing is known."""
    found: str
    """What the registry had under that name when somebody looked."""
    proof: str
    """A file that every checkout has."""
    express: Callable[[Row], dict[str, Any]]
    run: Callable[[Path | None, Path, Path, Sequence[tuple[str, dict[str, Any]]]], dict[str, float | str]]


class ExpressionError(Exception):
    """Why a tool has no words for a job."""


@dataclass
class Outcome:
    """What became of a tool: `status` in words, seconds by row, and why others have none."""

    tool: Tool
    status: str
    expressible: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)


# --- what both can say ------------------------------------------------------------------------------------------


def _config(job: Job) -> dict[str, Any]:
    config = dict(job.model_config)
    return {"kv_heads": config.get("heads"), "act": "", **config}


def _dense_half(row: Row) -> tuple[Job, dict[str, Any]]:
    """The job and its shape, where it is a dense decoder in half precision in a layout of tp, pp and dp."""
    job = row.job
    if job is None:
        raise ExpressionError("not a job we could read")
    config, layout = _config(job), job.layout_spec
    if config.get("experts") or config.get("attn") == "mla":
        raise ExpressionError("mixture of experts or latent attention")
    if not {"layers", "hidden", "heads", "ffn", "vocab"} <= set(config):
        raise ExpressionError("model is not given by its shape")
    if job.precision not in ("fp16-master", "bf16-master"):
        raise ExpressionError(f"precision {job.precision}")
    if layout.zero > 1:
        raise ExpressionError("weights or gradients sharded (FSDP, ZeRO 2 and 3)")
    if layout.cp > 1:
        raise ExpressionError("context parallelism")
    if job.batch_size is None or "seq_len" not in job.input:
        raise ExpressionError("no batch or sequence length")
    if int(config["layers"]) % (layout.pp * layout.vpp):
        raise ExpressionError("layers do not divide over the stages")
    return job, config


# --- Calculon ---------------------------------------------------------------------------------------------------

_CALCULON_SYSTEMS = {"a100-80gb-sxm": "a100_80g", "a100-40gb-sxm": "a100_80g", "h100-80gb-sxm": "h100_80g_nvl8"}
"""Its own descriptions. It has none of 40 GB cards: those take the 80 GB one with our catalog's memory."""
_RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}


def calculon_case(row: Row) -> dict[str, Any]:
    """A row as Calculon's three files: application, execution, and which system with what changed in it."""
    job, config = _dense_half(row)
    layout = job.layout_spec
    if config["act"] == "swiglu" or config["kv_heads"] != config["heads"]:
        raise ExpressionError("gated feed-forward or grouped queries")
    if job.gpu not in _CALCULON_SYSTEMS:
        raise ExpressionError(f"no system description for {job.gpu}")
    gpu = default_catalog().gpus[job.gpu]
    inner = 8

    def net(ranks_within: int) -> int:
        return 0 if ranks_within <= inner else 1

    changed: dict[str, Any] = {"must_be_filled": False}  # it refuses jobs on part of a node otherwise
    if job.gpu == "a100-40gb-sxm":
        changed["mem1"] = {"GiB": round(gpu.memory_bytes / 2**30), "GBps": gpu.memory_bytes_per_s / 1e9}
    return {
        "system": _CALCULON_SYSTEMS[job.gpu],
        "changed": changed,
        "application": {
            "name": row.id, "hidden": config["hidden"], "feedforward": config["ffn"], "attn_heads": config["heads"],
            "attn_size": config.get("head_dim") or config["hidden"] // config["heads"],
            "seq_size": job.input["seq_len"], "num_blocks": config["layers"],
        },
        "execution": {
            "num_procs": layout.gpus, "tensor_par": layout.tp, "pipeline_par": layout.pp, "data_par": layout.dp,
            "tensor_par_net": net(layout.tp), "pipeline_par_net": net(layout.tp * layout.pp * layout.dp),
            "data_par_net": net(layout.tp * layout.dp),
            "batch_size": (job.batch_size or 1) * job.grad_accum * layout.dp, "microbatch_size": job.batch_size,
            "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": _RECOMPUTE[job.recompute], "pipeline_interleaving": layout.vpp,
            "optimizer_sharding": bool(layout.zero) and layout.dp > 1,
            "tensor_par_comm_type": "rs_ag" if layout.sp else "ar", "tensor_par_overlap": "none",
            "seq_par_ag_redo": layout.sp and job.recompute != "full",
            "data_par_overlap": layout.overlap_grad_reduce and layout.dp > 1,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
        },
    }  # fmt: skip


def run_calculon(
    checkout: Path | None, python: Path, work: Path, cases: Sequence[tuple[str, dict[str, Any]]]
) -> dict[str, float | str]:
    """`calculon llm application execution system stats`, one process per row."""
    if checkout is None:
        raise FileNotFoundError("the system descriptions are not in a package; give --calculon DIR")
    found: dict[str, float | str] = {}
    command, environment = checkout / "bin" / "calculon", {**_bare(), "PYTHONPATH": str(checkout)}
    with Progress("rows of Calculon") as progress:
        for done, (name, case) in enumerate(cases):
            progress(done, len(cases))
            system = json.loads((checkout / "systems" / f"{case['system']}.json").read_text(encoding="utf-8"))
            system["networks"][0]["must_be_filled"] = case["changed"]["must_be_filled"]
            system["mem1"].update(case["changed"].get("mem1", {}))
            files = []
            for what, content in (("app", case["application"]), ("exe", case["execution"]), ("sys", system)):
                files.append(work / f"{what}.json")
                files[-1].write_text(json.dumps(content), encoding="utf-8")
            stats = work / "stats.json"
            stats.unlink(missing_ok=True)
            said = _command([str(python), str(command), "llm", *map(str, files), str(stats)], work, environment)
            if not stats.exists():
                found[name] = said
                continue
            found[name] = float(json.loads(stats.read_text(encoding="utf-8"))["total_time"])
    return found


# --- SimuMax ----------------------------------------------------------------------------------------------------

_SIMUMAX_SYSTEMS = {"a100-80gb-sxm": ("a100_bf16", "a100_nvlink"), "h100-80gb-sxm": ("h100_nvlink",)}
_SIMUMAX_DRIVER = '''
"""Answers every case of argv[1] in argv[2], inside SimuMax's own environment; argv[3] is its checkout."""
import dataclasses, json, pathlib, sys
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM

def words(cls, given):
    known = {f.name for f in dataclasses.fields(cls)}
    return {k: v for k, v in given.items() if k in known}

answers = {}
for name, case in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    try:
        files = [pathlib.Path(sys.argv[3], "configs", "system", s + ".json") for s in case["systems"]]
        system = next(f for f in files if f.exists())
        perf = PerfLLM()
        perf.configure(
            strategy_config=StrategyConfig(**words(StrategyConfig, case["strategy"])),
            model_config=ModelConfig(**words(ModelConfig, case["model"])),
            system_config=SystemConfig.init_from_config_file(str(system)),
        )
        perf.run_estimate()
        cost = perf.analysis_cost()
        answers[name] = str(getattr(cost, "data", cost)["duration_time_per_iter"])
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
    pathlib.Path(sys.argv[2]).write_text(json.dumps(answers))
'''


def simumax_case(row: Row) -> dict[str, Any]:
    """A row as SimuMax's model and strategy, and the system files that may describe its GPU."""
    job, config = _dense_half(row)
    layout = job.layout_spec
    if job.gpu not in _SIMUMAX_SYSTEMS:
        raise ExpressionError(f"no system description for {job.gpu}")
    full = job.recompute == "full"
    return {
        "systems": _SIMUMAX_SYSTEMS[job.gpu],
        "model": {
            "model_name": row.id, "model_type": "dense", "hidden_size": config["hidden"], "head_num": config["heads"],
            "kv_head_num": config["kv_heads"], "intermediate_size": config["ffn"], "layer_num": config["layers"],
            "head_size": config.get("head_dim") or config["hidden"] // config["heads"],
            "vocab_size": config["vocab"], "use_swiglu": config["act"] == "swiglu",
        },
        "strategy": {
            "seq_len": job.input["seq_len"], "micro_batch_size": job.batch_size, "micro_batch_num": job.grad_accum,
            "dtype": "bf16", "world_size": layout.gpus, "tp_size": layout.tp, "pp_size": layout.pp,
            "interleaving_size": layout.vpp, "enable_sequence_parallel": layout.sp, "zero_state": layout.zero,
            "enable_dropout": bool(config.get("dropout")), "use_fp32_accum_grad": False,
            "use_math_sdp": job.attention == "math", "use_flash_sdp": job.attention != "math",
            "enable_recompute": job.recompute != "none",
            "recompute_granularity": {"none": None, "full": "full_block", "selective": "selective_recompute"}[
                job.recompute
            ],
            "attn_recompute": job.recompute == "selective",
            "recompute_layer_num": 0 if job.recompute == "none" else int(config["layers"]) // layout.pp,
            "use_fused_norm": True, "mem_factor": 1.0 if full else 0.94,
        },
    }  # fmt: skip


def run_simumax(
    checkout: Path | None, python: Path, work: Path, cases: Sequence[tuple[str, dict[str, Any]]]
) -> dict[str, float | str]:
    """All rows in one process of its environment."""
    if checkout is None:
        raise FileNotFoundError("the system descriptions are not in a package; give --simumax DIR")
    asked, told, driver = work / "cases.json", work / "answers.json", work / "driver.py"
    asked.write_text(json.dumps(list(cases)), encoding="utf-8")
    driver.write_text(_SIMUMAX_DRIVER, encoding="utf-8")
    told.unlink(missing_ok=True)
    environment = {**_bare(), "PYTHONPATH": str(checkout)}
    limit = SECONDS_PER_ROW * max(len(cases), 1)
    said = _command([str(python), str(driver), str(asked), str(told), str(checkout)], work, environment, limit)
    answers: dict[str, str] = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
    return {name: seconds_of(answers.get(name, said)) for name, _ in cases}


def seconds_of(said: str) -> float | str:
    """A duration as SimuMax writes it: milliseconds, or a number with its unit; anything else is a reason."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(us|ms|s|min|h)?\s*", said)
    if match is None:
        return said
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[match[2] or "ms"]


TOOLS = (
    Tool(
        "Calculon", "github.com/calculon-ai/calculon", "calculon", None,
        "the registry's calculon (1.0 of 2011 and 1.1.1 of 2013, sources only; 1.1.1 has sha256 575f7093b14d...) is a "
        "producer-consumer library for Python 2.7 by another author (github.com/jango/calculon), so it was not run",
        "calculon/llm/llm.py", calculon_case, run_calculon,
    ),
    Tool(
        "SimuMax", "github.com/MooreThreads/SimuMax", "simumax", None,
        "the registry had no simumax", "simumax/core/perf_llm.py", simumax_case, run_simumax,
    ),
)  # fmt: skip


# --- getting a tool ---------------------------------------------------------------------------------------------


def _bare() -> dict[str, str]:
    """What a foreign tool gets of our environment."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def _command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, limit: float = SECONDS_PER_ROW
) -> str:
    """Run it; its last line, which says what went wrong where something did."""
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {limit:.0f} s"
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def obtain(tool: Tool, checkout: Path | None, folder: Path) -> tuple[Path | None, str]:
    """The python that can run the tool, or None; and in words what was done.

    From the registry only wheels are taken, and only with the pinned hash: a source package would run its own code
    while it is looked at.
    """
    if checkout is not None and not (checkout / tool.proof).exists():
        return None, f"could not be run: {checkout} is no checkout of {tool.home} (it has no {tool.proof})"
    if checkout is None and tool.pinned is None:
        got = folder / "wheels"
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        _command([*words, "--dest", str(got), tool.package], folder)
        wheels = sorted(got.glob("*.whl"))
        if wheels:
            return None, f"could not be installed: nobody has read {wheels[0].name}, which the registry has; not run"
        return None, f"could not be installed: no wheel of {tool.package} on the package registry; {tool.found}"
    home = folder / "environment"
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    if checkout is None and tool.pinned is not None:
        version, digest = tool.pinned
        wanted = folder / "requirements.txt"
        wanted.write_text(f"{tool.package}=={version} --hash=sha256:{digest}\n", encoding="utf-8")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
        said = _command([*pip, "-r", str(wanted)], folder, limit=600)
        if not list(home.rglob(tool.package)):
            return None, f"could not be installed: {said}"
        return python, f"{tool.package} {version} from the package registry"
    needs = checkout / "requirements.txt" if checkout else None
    if needs is not None and needs.exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", str(needs)]
        _command(pip, folder, limit=600)
    return python, f"run from a checkout, {_version(checkout)}"


def _version(checkout: Path | None) -> str:
    said = _command(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], Path.cwd())
    return f"commit {said}" if re.fullmatch(r"[0-9a-f]{7,40}", said) else "of no known commit"


def ask(tool: Tool, rows: Sequence[Row], checkout: Path | None) -> Outcome:
    """The tool's seconds for every row it can express."""
    outcome = Outcome(tool, "")
    cases = []
    for row in rows:
        try:
            cases.append((row.id, tool.express(row)))
        except ExpressionError as error:
            outcome.reasons[f"cannot be expressed: {error}"] += 1
    outcome.expressible = [name for name, _ in cases]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        python, outcome.status = obtain(tool, checkout, folder)
        if python is None:
            return outcome
        try:
            answers = tool.run(checkout, python, folder, cases)
        except (OSError, ValueError, KeyError) as error:
            outcome.status += f"; could not be run: {error}"
            return outcome
    for name, answer in answers.items():
        if isinstance(answer, float):
            outcome.seconds[name] = answer
        else:
            outcome.reasons[f"no answer: {answer[:120]}"] += 1
    return outcome


# --- ours and the textbook's ------------------------------------------------------------------------------------


def textbook_seconds(job: Job, parameters: int) -> float | None:
    """6 N D / (MFU x peak x GPUs); None for a mixture of experts, of which only a part works on each token."""
    if _config(job).get("experts") or "seq_len" not in job.input or job.batch_size is None:
        return None
    tokens = job.batch_size * job.grad_accum * job.layout_spec.dp * int(job.input["seq_len"])  # type: ignore[arg-type]
    peak = default_catalog().gpus[job.gpu].peak(job.precision_spec.math)
    return 6.0 * parameters * tokens / (MFU * peak * job.gpus)


def own(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By predictor, seconds of every row: `predict` as it ships, as it was before any row of large models was fitted,
    and the textbook formula."""
    found: dict[str, dict[str, float]] = {OURS: {}, UNFITTED: {}, TEXTBOOK: {}}
    blank = replace(shipped(), layouts=costs_of(usual()))
    with Progress("rows") as progress:
        for done, row in enumerate(rows):
            progress(done, len(rows))
            if row.job is None:
                continue
            anchoring = Anchoring(True, ("key",), row.framework, row.source)  # as `evaluate`: never the job itself
            try:
                estimate = predict(row.job, anchoring=anchoring)
            except PrecisionTimeError:
                continue
            found[OURS][row.id] = estimate.step.p50
            found[UNFITTED][row.id] = predict(row.job, constants=blank, anchoring=anchoring).step.p50
            rule = textbook_seconds(row.job, estimate.parameters)
            if rule is not None:
                found[TEXTBOOK][row.id] = rule
    return found


def source_of(row: Row) -> str:
    """The published table a row is from."""
    if row.framework == "megatron-deepspeed":
        return "vTrain, one node" if row.gpus <= 8 else "vTrain, many nodes"
    return {"megatron": "Megatron-LM", "llm-foundry": "llm-foundry (FSDP)", "megatron-bridge": "Megatron-Bridge"}.get(
        row.framework, row.framework or "other"
    )


def accuracy(errors: Sequence[float]) -> dict[str, float | int]:
    sizes = [abs(e) for e in errors]
    return {
        "n": len(errors),
        "mape": statistics.fmean(sizes),
        "median_ape": statistics.median(sizes),
        "signed_mean": statistics.fmean(errors),
    }


def judge(
    rows: Sequence[Row], seconds: Mapping[str, Mapping[str, float]], asked: Sequence[str]
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Source -> predictor -> accuracy, on the rows that every one of `asked` has an answer for."""
    common = [row for row in rows if all(row.id in seconds[name] for name in asked)]
    groups: dict[str, list[Row]] = {}
    for row in common:
        groups.setdefault(source_of(row), []).append(row)
    if len(groups) > 1:
        groups["all of these"] = common
    return {
        source: {
            name: accuracy([seconds[name][r.id] / r.measured_s - 1.0 for r in those]) for name in asked
        } | {"seen_by_fit": {"n": sum(bool(seen_by(r.digest)) for r in those)}}
        for source, those in groups.items()
    }  # fmt: skip


# --- the report -------------------------------------------------------------------------------------------------


def table(judged: Mapping[str, Mapping[str, Mapping[str, float | int]]]) -> list[str]:
    lines = ["| rows of | predictor | rows | MAPE | median | signed |", "|---|---|---:|---:|---:|---:|"]
    for source, by in judged.items():
        for name, a in by.items():
            if name != "seen_by_fit":
                cells = f"{a['mape']:.1%} | {a['median_ape']:.1%} | {a['signed_mean']:+.1%}"
                lines.append(f"| {source} | {name} | {a['n']} | {cells} |")
    return lines


def report(result: Mapping[str, Any]) -> str:
    lines = ["# Beside other tools", ""]
    for tool in result["tools"]:
        lines.append(f"- **{tool['name']}** ({tool['home']}): {tool['status']}.")
        lines.append(f"  It could express {tool['expressible']} of {result['rows']} rows.")
        for reason, count in tool["reasons"].items():
            lines.append(f"  - {count} rows: {reason}")
    for title, judged in result["comparisons"].items():
        lines += ["", f"## {title}", "", *table(judged)]
        if not judged:
            lines[-2:] = ["No row that all of them have an answer for."]
    lines += [
        "",
        f"error = predicted / measured - 1; MAPE and median of its size, signed: its mean. {OURS}: `predict` as "
        f"shipped, P50, never corrected by the job itself; {result['seen']} of its {result['predicted']} predicted "
        f"rows were in the fit of its {len(FACTORS)} factors of layouts (held out: "
        f"benchmarks/results/large-models.md). {UNFITTED}: with these factors as they were before any row was seen, "
        f"which is the fair figure beside another tool. "
        f"{TEXTBOOK}: 6 N D / ({MFU} x dense peak x GPUs), dense models only; the share {MFU} is fixed, not fitted, "
        f"and recomputation is not counted.",
        "",
        f"{result['date']}, {result['table']} ({result['rows']} rows); python {result['python']}: "
        "`python benchmarks/other_tools.py TABLE.csv`.",
    ]
    return "\n".join(lines) + "\n"


def compare_all(rows: Sequence[Row], checkouts: Mapping[str, Path | None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the report, and seconds by predictor and row."""
    seconds: dict[str, dict[str, float]] = own(rows)
    outcomes = [ask(tool, rows, checkouts.get(tool.name)) for tool in TOOLS]
    comparisons = {}
    for outcome in outcomes:
        name = outcome.tool.name
        seconds[name] = outcome.seconds
        if outcome.seconds:
            comparisons[f"On the rows {name} answered"] = judge(rows, seconds, (name, OURS, UNFITTED, TEXTBOOK))
            continue
        chosen = set(outcome.expressible)
        those = [row for row in rows if row.id in chosen]
        comparisons[f"On the rows {name} could express; it was not run"] = judge(
            those, seconds, (OURS, UNFITTED, TEXTBOOK)
        )
    comparisons["On all rows of dense models"] = judge(rows, seconds, (OURS, UNFITTED, TEXTBOOK))
    result = {
        "date": datetime.date.today().isoformat(),
        "python": sys.version.split()[0],
        "rows": len(rows),
        "predicted": len(seconds[OURS]),
        "seen": sum(bool(seen_by(row.digest)) for row in rows if row.id in seconds[OURS]),
        "mfu": MFU,
        "tools": [
            {"name": o.tool.name, "home": o.tool.home, "status": o.status, "expressible": len(o.expressible),
             "answered": len(o.seconds), "reasons": dict(o.reasons.most_common(12))}
            for o in outcomes
        ],
        "comparisons": comparisons,
    }  # fmt: skip
    return result, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, help="measured jobs (columns: docs/evaluate.md)")
    parser.add_argument("--calculon", type=Path, help="a checkout of github.com/calculon-ai/calculon; its code is run")
    parser.add_argument("--simumax", type=Path, help="a checkout of github.com/MooreThreads/SimuMax; its code is run")
    parser.add_argument("--rows", type=Path, help="write every row to this CSV file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the report")
    given = parser.parse_args()
    rows = [row for row in read_table(given.table).rows if row.measured_s > 0]
    checkouts = {
        name: path and path.resolve() for name, path in (("Calculon", given.calculon), ("SimuMax", given.simumax))
    }
    result, seconds = compare_all(rows, checkouts)
    result["table"] = given.table.name
    text = report(result)
    print(text)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "other_tools.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (given.results / "other_tools.md").write_text(text, encoding="utf-8")
    if given.rows:
        with given.rows.open("w", newline="", encoding="utf-8") as file:
            sheet = csv.writer(file)
            sheet.writerow(["id", "source", "measured_s", *seconds])
            for row in rows:
                sheet.writerow([row.id, source_of(row), row.measured_s, *(s.get(row.id, "") for s in seconds.values())])
    return 0


if __name__ == "__main__":
    sys.exit(main())
