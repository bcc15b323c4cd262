// The view of one job: its times, cost and memory, where a step and a run go, the time limit, and what it rests on.

import { ask, latest } from "./api.js";
import { stackedBar } from "./bars.js";
import { h, newId, put, speak, wide } from "./dom.js";
import { title } from "./job.js";
import { bytesInterval, change, energyInterval, fixed, humanBytes, humanCount, humanSeconds, interval, percent, secondsInterval, usd } from "./units.js";
import words from "./words.js";

const request = latest();
const SHARED = ["job", "model", "family", "precision", "gpu"];
const SHARED_WORDS = { gpu: "GPU", family: "model family" };
/** What outcomes that correct a prediction have in common with it, the most telling first. */

/** The view in `root`. `page` has `cluster()`, `showProblem(problem)`, `clearProblem()` and `openJob(id)`. */
export class PredictView {
  constructor(root, page) {
    this.root = root;
    this.page = page;
    this.answer = h("div", { class: "prediction" });
    this.walltime = new TimeLimit(page);
    root.append(this.answer);
  }

  async update(job) {
    this.answer.classList.add("waiting");
    let found;
    try {
      found = await request("v1/predict", { job, cluster: this.page.cluster(), keep: false });
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.page.showProblem(problem);
      this.page.brief("");
      if (!this.answer.firstChild) put(this.answer, h("p", { class: "soft" }, "The prediction appears here once the marked field is right."));
      speak(problem.message);
      return;
    }
    this.page.clearProblem();
    this.answer.classList.remove("waiting");
    this.show(job, found);
  }

  show(job, { estimate, correction }) {
    const save = h("button", { type: "button", class: "main", on: { click: () => this.save(job, save) } }, "Keep this prediction");
    const hasRun = Boolean(estimate.goodput);
    if (hasRun) this.walltime.show(job);
    put(this.answer,
      h("p", { class: "headline" }, title(estimate.job)),
      cards(estimate),
      corrected(correction),
      stepBar(estimate),
      hasRun ? runBar(estimate) : h("p", { class: "soft" }, "With a number of epochs or steps the page also shows the run and its time limit; with a price list, its cost."),
      memoryBar(estimate.memory),
      hasRun ? this.walltime.element : null,
      basis(estimate),
      h("div", { class: "row" }, save, h("small", { class: "soft" }, "A kept prediction is listed under Jobs, where its outcome can be recorded.")));
    this.page.brief([secondsInterval(estimate.step).middle, estimate.run ? humanSeconds(estimate.run.p50) : "", estimate.cost_usd ? usd(estimate.cost_usd.p50) : "", humanBytes(estimate.memory.peak_bytes)].filter(Boolean).join(" · "));
    speak(spoken(estimate));
  }

  async save(job, button) {
    button.disabled = true;
    try {
      const kept = await ask("v1/predict", { job, cluster: this.page.cluster() });
      const link = h("a", { href: this.page.jobLink(kept.id) }, h("code", {}, kept.id));
      button.replaceWith(h("span", {}, "Kept as ", link, "."));
      link.focus({ preventScroll: true });
      speak("The prediction is kept.");
    } catch (problem) {
      button.disabled = false;
      this.page.showProblem(problem);
    }
  }
}

function card(name, { middle, ends }, further = null, kind = "") {
  return h("div", { class: `card ${kind}` }, h("h3", {}, name), h("p", { class: "big" }, middle),
    ends ? h("p", { class: "ends" }, h("span", { class: "soft" }, "P10–P90 "), ends) : null, further ? h("p", { class: "soft" }, further) : null);
}

function cards(estimate) {
  const { memory, utilisation } = estimate;
  const fits = memory.fits
    ? `fits in ${humanBytes(memory.capacity_bytes)}, probability ${percent(memory.fit_probability)}`
    : `does not fit in ${humanBytes(memory.capacity_bytes)}`;
  const speed = utilisation?.tokens_per_s
    ? { middle: `${humanCount(utilisation.tokens_per_s)} tokens/s` }
    : { middle: `${humanCount(estimate.samples_per_s)} ${estimate.samples_unit}/s` };
  return h("div", { class: "cards" },
    card("Step", secondsInterval(estimate.step)),
    estimate.run ? card("Run", secondsInterval(estimate.run), estimate.steps ? `${humanCount(estimate.steps)} steps` : null) : null,
    estimate.cost_usd ? card("Cost", interval(estimate.cost_usd, usd), rented(estimate.rental)) : null,
    card("Memory of a GPU", bytesInterval({ ...memory.peak_interval_bytes, p50: memory.peak_bytes }), fits, memory.fits ? "" : "wrong"),
    card("Speed", speed, utilisation?.mfu ? `MFU ${percent(utilisation.mfu, 1)} of the ${utilisation.peak} peak` : null),
    estimate.energy_j ? card("Energy of the GPUs", energyInterval(estimate.energy_j)) : null);
}

function rented(rental) {
  if (!rental) return null;
  const name = [rental.provider, rental.instance].filter(Boolean).join(" ");
  return [name, rental.as_of ? `price of ${rental.as_of}` : ""].filter(Boolean).join(", ") || null;
}

function corrected(correction) {
  if (!correction) return null;
  const { outcomes, factor, cluster, sharing } = correction;
  const shared = SHARED.filter((name) => sharing[name]).map((name) => `${fixed(sharing[name], 0)} of this ${SHARED_WORDS[name] ?? name}`);
  const count = outcomes === 1 ? "1 outcome" : `${fixed(outcomes, 0)} outcomes`;
  return h("p", { class: "note" }, `Step corrected by ${change(factor)} by ${count} of cluster ${cluster}${shared.length ? `: ${shared.join(", ")}` : ""}.`);
}

function stepBar(estimate) {
  const parts = Object.entries(words.terms).map(([key, name]) => [name, estimate.breakdown[key] ?? 0]);
  return stackedBar({ name: "Where a step goes", parts, low: estimate.step.p10, high: estimate.step.p90 });
}

function runBar(estimate) {
  const parts = Object.entries(words.parts).map(([key, name]) => [name, estimate.goodput.parts[key]?.p50 ?? 0]);
  return stackedBar({ name: "Where the run goes", parts, low: estimate.run.p10, high: estimate.run.p90 });
}

function memoryBar(memory) {
  return stackedBar({
    name: `Memory of a GPU, which has ${humanBytes(memory.capacity_bytes)}`, parts: Object.entries(memory.by_category),
    low: memory.peak_interval_bytes.p10, high: memory.peak_interval_bytes.p90, capacity: memory.capacity_bytes, bytes: true,
  });
}

function basis(estimate) {
  const { anchors, goodput } = estimate;
  const sources = Object.entries(estimate.sources).filter(([, share]) => share >= 0.005).map(([name, share]) => `${name} ${percent(share)}`);
  const notes = [
    `Kernel and communication times: ${sources.join(", ") || "none"}.`,
    `Physical floor of the kernels: ${humanSeconds(estimate.floor_s)}.`,
    anchors?.count ? `Corrected by ${anchors.count} published jobs of this family.` : null,
    estimate.unsupported?.length ? `Without a model, left out: ${estimate.unsupported.join(", ")}.` : null,
    ...(goodput?.notes ?? []), ...estimate.assumptions,
  ];
  return h("details", { class: "basis" }, h("summary", {}, "What this rests on"), h("ul", {}, notes.filter(Boolean).map((note) => h("li", {}, note))));
}

function spoken(estimate) {
  const step = secondsInterval(estimate.step);
  const run = estimate.run ? ` Run ${humanSeconds(estimate.run.p50)}.` : "";
  const cost = estimate.cost_usd ? ` Cost ${usd(estimate.cost_usd.p50)}.` : "";
  const fits = estimate.memory.fits ? "Fits in memory." : "Does not fit in memory.";
  return `Step ${step.middle}, P10 to P90 ${step.ends}.${run}${cost} ${fits}`;
}

/** The time limit to ask a scheduler for. */
class TimeLimit {
  constructor(page) {
    this.page = page;
    this.request = latest();
    const [confidence, format] = [newId("confidence"), newId("format")];
    this.confidence = h("select", { id: confidence, on: { change: () => this.update() } },
      [0.8, 0.9, 0.95, 0.99].map((each) => h("option", { value: each, selected: each === 0.95 }, percent(each))));
    this.format = h("select", { id: format, on: { change: () => this.update() } },
      words.formats.map((each) => h("option", { value: each, selected: each === "slurm" }, each)));
    this.text = h("div", { class: "time-limit" });
    this.element = h("section", { class: "panel", "aria-label": "Time limit for a scheduler" },
      h("h3", {}, "Time limit for a scheduler"),
      h("div", { class: "row" }, h("label", { for: confidence }, "Ends in time with"), this.confidence, h("label", { for: format }, "written for"), this.format),
      this.text);
  }

  show(job) {
    this.job = job;
    this.update();
  }

  async update() {
    const asked = { job: this.job, cluster: this.page.cluster(), keep: false, confidence: Number(this.confidence.value), format: this.format.value };
    try {
      const limit = await this.request("v1/walltime", asked);
      put(this.text, wide("Lines for the scheduler", h("pre", {}, limit.text)));
    } catch (problem) {
      if (problem.name !== "AbortError") put(this.text, h("p", { class: "problem" }, problem.message));
    }
  }
}
