"""The command `search`: which configuration to try next, from a table or around a job, and what is best so far."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.search_runs import command_of, most_runs, run_all
from precision_time.cli.streams import note
from precision_time.units import human_seconds

if TYPE_CHECKING:
    from precision_time.job import Job
    from precision_time.predictors.cherrypick import CherryPick, Suggestion
    from precision_time.predictors.cloud_search import Configurations, Trial
    from precision_time.predictors.search_state import State
    from precision_time.predictors.search_table import Results

SHOWN = 3
"""Configurations that are listed as the next ones."""
_GRID = {"gpu": "gpus", "gpus": "counts", "precision": "precisions", "batch_size": "batches", "price": "price"}
"""Flag -> argument of `predicted_configurations`."""


def names_job(options: Namespace) -> bool:
    """Whether a job file is searched around, instead of a table of configurations."""
    from precision_time.reading import SUFFIXES

    if options.source is None:
        raise UsageError("no table is given; name a CSV file of configurations, or a job file")
    return bool(options.source.lower().endswith(SUFFIXES))


def search(options: Namespace, flags: dict[str, Any], job: Job | None) -> tuple[dict[str, Any], str]:
    """For JSON, and as text. `flags` describe the grid around `job`, which is None for a table."""
    from precision_time.journal import held
    from precision_time.predictors.cherrypick import CherryPick
    from precision_time.predictors.search_state import SETTINGS, read_state

    told = _told(options.result)
    command = _command(options)
    with ExitStack() as stack:
        if options.state is not None:
            stack.enter_context(
                held(f"{options.state}.lock", f"state {show(options.state)}", ", or name another state")
            )
        earlier = read_state(options.state) if options.state is not None else None
        state = _state(options, earlier)
        configurations, from_table = _configurations(options, flags, job, state.objective)
        before = {**from_table, **(earlier.results if earlier else {})}
        state = replace(state, results={}).with_results({**before, **told})
        engine = CherryPick(
            configurations, deadline_s=state.deadline_s, seed=state.seed, setting=SETTINGS[state.setting]
        )
        for name, seconds in state.results.items():
            engine.tell(name, seconds)
        for name in told:
            if name in before and before[name] != told[name]:
                note(f"the result of {name} was {_result(before[name])} and is now {_result(told[name])}")
        if options.state is not None:
            state.write(options.state)
        if command:

            def keep(name: str, seconds: float | None) -> None:
                nonlocal state
                state = state.with_results({name: seconds})
                state.write(options.state)

            run_all(engine, command, most_runs(options.most_runs), keep)
        return _content(engine, state), _text(engine, state)


def _command(options: Namespace) -> list[str]:
    """The words of --run, none where nothing is run; without a state an interrupted search would lose its runs."""
    if options.run is None:
        if options.most_runs is not None:
            raise UsageError("flag --most-runs is for --run COMMAND; leave it out, or add --run")
        return []
    if options.state is None:
        raise UsageError("flag --run needs --state FILE, which keeps the result of every run")
    most_runs(options.most_runs)
    return command_of(options.run)


def _state(options: Namespace, earlier: State | None) -> State:
    """What the search was begun with; a flag that differs from it is an error."""
    from precision_time.predictors.search_state import State, check_settings
    from precision_time.predictors.search_table import number

    base = earlier or State()
    given: dict[str, Any] = {name: getattr(options, name) for name in ("objective", "setting")}
    given["deadline_s"] = None if options.deadline is None else number(options.deadline.removesuffix("s"))
    given["seed"] = None if options.seed is None else small_number(options.seed)
    for flag, name in (("deadline", "deadline_s"), ("seed", "seed")):
        if getattr(options, flag) is not None and given[name] is None:
            raise UsageError(
                f"flag --{flag} is {show(getattr(options, flag))}; give a number, for example --{flag} 100"
            )
    given = {name: value for name, value in given.items() if value is not None}
    chosen = check_settings(**{**_settings(base), **given}, where="search")
    if earlier is not None:
        for name, value in _settings(earlier).items():
            if (new := getattr(chosen, name)) != value:
                raise UsageError(
                    f"state {show(options.state)} was begun with {name} {value}, not {new}; leave the flag out, or "
                    "name another state"
                )
    return replace(chosen, results=base.results)


def _settings(state: State) -> dict[str, Any]:
    return {name: value for name, value in asdict(state).items() if name != "results"}


def _told(texts: Sequence[str]) -> Results:
    """The results of --result ID=SECONDS."""
    from precision_time.predictors.search_table import result_of

    told: Results = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"flag --result is {show(text)}; write ID=SECONDS or ID=failed")
        if name.strip() in told:
            raise UsageError(f"flag --result names {show(name.strip())} twice; keep one of them")
        told[name.strip()] = result_of(value, f"flag --result {show(name.strip())}:")
    return told


def _configurations(
    options: Namespace, flags: dict[str, Any], job: Job | None, objective: str
) -> tuple[Configurations, Results]:
    import numpy as np

    from precision_time.predictors.search_table import TIME, read_search_table

    if job is None:
        if flags:
            flag = "--" + next(iter(flags)).replace("_", "-")
            raise UsageError(f"flag {flag} is for a job file (.yaml, .json); leave it out for a table")
        table = read_search_table(options.source, objective)
        return table.configurations, table.results
    from precision_time.cli.progress import Progress
    from precision_time.predictors.training_grid import predicted_configurations

    given: dict[str, Any] = {_GRID[name]: value for name, value in flags.items()}
    for name in ("gpus", "batch_size"):
        if name in flags:
            given[_GRID[name]] = [_whole(name, value) for value in flags[name]]
    with Progress("GPU types") as progress:
        grid = predicted_configurations(job, progress=progress, **given)
    price = np.ones(len(grid)) if objective == TIME else grid.price_per_s
    return replace(grid, seconds=None, price_per_s=price), {}


def _whole(name: str, text: str) -> int:
    value = small_number(text)
    if not value:
        raise UsageError(f"flag --{name.replace('_', '-')} is {show(text)}; give whole numbers above 0")
    return value


def _content(engine: CherryPick, state: State) -> dict[str, Any]:
    ranked, best = engine.ranked(), engine.best
    return {
        **_settings(state),
        "configurations": len(engine.trials.table),
        "tried": engine.trials.tried,
        "next": _suggestion(ranked[0]) if ranked else None,
        "then": [_suggestion(each) for each in ranked[1:SHOWN]],
        "stopped": engine.stopped or None,
        "best": _trial(best) if best else None,
        "results": [_trial(each) for each in engine.trials.done.values()],
        "failed": list(engine.result().failed),
    }


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    fields = asdict(suggestion)
    return {
        "id": fields["name"],
        "expected_improvement": fields["improvement"],
        "chance_to_meet_deadline": fields["chance"],
        "expected_cost": fields["cost"],
        "expected_seconds": fields["seconds"],
        "p90_over_p50": fields["spread"],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {"id": trial.name, "seconds": trial.seconds, "cost": trial.cost, "meets_deadline": trial.feasible}


def _text(engine: CherryPick, state: State) -> str:
    from precision_time.report.table import Table

    trials, best, ranked = engine.trials, engine.best, engine.ranked()
    limit = f", deadline {human_seconds(state.deadline_s)}" if state.deadline_s else ""
    lines = [f"{trials.tried} of {len(trials.table)} configurations tried, lowest {state.objective}{limit}"]
    if trials.failed:
        lines.append(f"failed: {', '.join(trials.table.names[i] for i in trials.failed)}")
    if best:
        cost = "" if state.objective == "time" else f", cost {best.cost:.4g}"
        lines.append(f"best so far: {best.name} in {human_seconds(best.seconds)}{cost}")
    elif trials.done and state.deadline_s:
        lines.append("no run has met the deadline so far")
    if not ranked:
        return "\n".join([*lines, f"stop: {engine.stopped}"])
    lines.append(f"next: {ranked[0].name}{_why(engine, ranked[0])}")
    if ranked[0].cost is not None:
        heads = [
            "next ones",
            "expected improvement",
            "meets the deadline",
            "expected cost",
            "seconds, P10-P90",
        ]
        rows = [_row(each) for each in ranked[:SHOWN]]
        keep = [at for at in range(len(heads)) if any(row[at] for row in rows)]
        lines += ["", Table([heads[at] for at in keep], [[row[at] for at in keep] for row in rows]).text(), ""]
    lines.append(f"tell its result with --result '{ranked[0].name}=SECONDS', or =failed")
    return "\n".join(lines)


def _why(engine: CherryPick, suggestion: Suggestion) -> str:
    """Why a configuration is the next one."""
    if suggestion.cost is None:
        done, starts = len(engine.trials.done), engine.setting.starts
        return f", quasi-random start {done + 1} of {starts}" if done < starts else ", in the order of the table"
    if suggestion.improvement is None:
        return f", {suggestion.chance:.0%} likely to meet the deadline"
    chance = "" if suggestion.chance is None else f", {suggestion.chance:.0%} likely to meet the deadline"
    rule = " for its cost" if engine.setting.per_cost else ""
    return f", expected improvement {suggestion.improvement:.1%}{chance}: the largest{rule}"


def _row(each: Suggestion) -> list[str]:
    if each.cost is None or each.seconds is None or each.spread is None:
        return [each.name, "", "", "", ""]
    return [
        each.name,
        "" if each.improvement is None else f"{each.improvement:.1%}",
        "" if each.chance is None else f"{each.chance:.0%}",
        f"{each.cost:.4g}",
        f"{each.seconds:.4g} ({each.seconds / each.spread:.4g} - {each.seconds * each.spread:.4g})",
    ]


def _result(seconds: float | None) -> str:
    return "failed" if seconds is None else f"{seconds:g} s"
