// The view that crosses the job with precisions, GPUs and counts.

import { latest } from "./api.js";
import { axis, legend, pieces, whisker } from "./bars.js";
import { chips, checks } from "./choose.js";
import { h, newId, put, speak, table, wide } from "./dom.js";
import { humanBytes, humanSeconds, percent, secondsInterval, unitFor, usd } from "./units.js";
import words from "./words.js";

const USUAL = ["torch-fp32", "tf32", "amp-fp16", "amp-bf16"];
const ORDERS = {
  given: { words: "as given", key: null },
  step: { words: "shortest step", key: (row) => row.estimate?.step.p50 },
  run: { words: "shortest run", key: (row) => row.estimate?.run?.p50 },
  cost: { words: "least cost", key: (row) => row.estimate?.cost_usd?.p50 },
};
const request = latest();

/** The view in `root`; `options` are its texts of the link: precisions, gpus, counts, sort. */
export class CompareView {
  constructor(root, page, options) {
    this.page = page;
    this.root = root;
    this.options = options;
    this.precisions = checks("Precisions", Object.keys(words.precisions), list(options.precisions) ?? USUAL, () => this.choose());
    this.gpus = chips("Further GPUs", page.gpuOptions, list(options.gpus) ?? [], () => this.choose());
    const [counts, sort] = [newId("counts"), newId("sort")];
    this.counts = h("input", { id: counts, type: "text", placeholder: "as in the job", value: options.counts ?? "", autocomplete: "off", on: { input: () => this.choose() } });
    this.sort = h("select", { id: sort, on: { change: () => this.choose() } },
      Object.entries(ORDERS).map(([key, order]) => h("option", { value: key, selected: key === options.sort }, order.words)));
    this.result = h("div", { class: "comparison" });
    root.append(
      h("div", { class: "panel choices" }, this.precisions.element, this.gpus.element,
        h("div", { class: "fields" },
          h("div", { class: "field" }, h("label", { for: counts }, "Numbers of GPUs"), this.counts),
          h("div", { class: "field" }, h("label", { for: sort }, "Order"), this.sort))),
      this.result);
  }

  choose() {
    const usual = this.precisions.values().join() === USUAL.join();
    this.options.precisions = usual ? "" : this.precisions.values().join(",");
    this.options.gpus = this.gpus.values().join(",");
    this.options.counts = this.counts.value.trim();
    this.options.sort = this.sort.value === "given" ? "" : this.sort.value;
    this.page.optionsChanged();
  }

  async update(job) {
    this.result.classList.add("waiting");
    const asked = { job, cluster: this.page.cluster() };
    if (this.precisions.values().length) asked.precisions = this.precisions.values();
    if (this.gpus.values().length) asked.gpus = [...new Set([job.gpu ?? "a100-80gb-sxm", ...this.gpus.values()])];
    const counts = list(this.options.counts);
    if (counts) asked.counts = counts.map((count) => (/^\d+$/.test(count) ? Number(count) : count));
    try {
      const found = await request("v1/compare", asked);
      this.page.clearProblem();
      this.show(found);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.page.showProblem(problem);
      put(this.result, h("p", { class: "problem" }, problem.message));
      speak(problem.message);
    }
    this.result.classList.remove("waiting");
  }

  show({ rows, explanations = [], baseline }) {
    const named = rows.map((row, at) => ({ ...row, name: name(row.job, rows), baseline: at === baseline }));
    const key = ORDERS[this.sort.value].key;
    if (key) named.sort((a, b) => (key(a) ?? Infinity) - (key(b) ?? Infinity));
    const good = named.filter((row) => row.estimate);
    const most = 1.02 * Math.max(...good.map((row) => row.estimate.step.p90));
    const [scale, unit] = unitFor(most);
    const terms = Object.entries(words.terms);
    const there = terms.map(([term, label], place) => [place, label, term]).filter(([, , term]) => good.some((row) => row.estimate.breakdown[term] > 0));
    put(this.result,
      h("figure", { class: "stack" }, h("figcaption", {}, `Time of one step of ${common(rows)}`, h("span", { class: "soft" }, " Lines: P10 to P90.")),
        h("ul", { class: "rows" }, named.map((row) => this.row(row, terms, most))),
        good.length ? axis(most / scale, unit) : null, legend(there)),
      wide("Table of the comparison", this.table(named)),
      explanations.length ? h("section", { class: "panel" }, h("h3", {}, "Why"), h("ul", {}, explanations.map((each) => h("li", {}, each)))) : null);
    speak(`${good.length} of ${rows.length} jobs compared. Fastest: ${fastest(good)}.`);
  }

  row(row, terms, most) {
    if (!row.estimate) return h("li", {}, h("p", { class: "row-name" }, row.name), h("p", { class: "problem" }, row.error));
    const { step, breakdown } = row.estimate;
    const there = terms.map(([term, label], place) => ({ words: label, value: breakdown[term] ?? 0, place })).filter(({ value }) => value > 0);
    const facts = [humanSeconds(step.p50), row.speed_up && !row.baseline ? `${row.speed_up.toFixed(2)}x` : "", row.estimate.memory.fits ? "" : "does not fit"];
    return h("li", {},
      h("p", { class: "row-name" }, row.name, h("span", {}, facts.filter(Boolean).join(", "))),
      h("div", { class: "bar", role: "img", "aria-label": `${row.name}: ${humanSeconds(step.p50)}` }, pieces(there, most), whisker(step.p10, step.p90, most)));
  }

  table(rows) {
    const heads = [{ text: "job", left: true }, "step", "P10 to P90", "speed-up", "run", "cost", "memory", { text: "fits", left: true }, "MFU", ""];
    return table("Comparison", heads, rows.filter((row) => row.estimate).map(({ estimate, job, ...row }) => {
      const step = secondsInterval(estimate.step);
      const { memory } = estimate;
      return [
        row.name, step.middle, step.ends, row.baseline ? "1" : row.speed_up ? row.speed_up.toFixed(2) : "",
        estimate.run ? humanSeconds(estimate.run.p50) : "", estimate.cost_usd ? usd(estimate.cost_usd.p50) : "",
        humanBytes(memory.peak_bytes), h("span", { class: memory.fits ? "yes" : "no" }, memory.fits ? "yes" : "no"),
        estimate.utilisation?.mfu ? percent(estimate.utilisation.mfu, 1) : "",
        h("button", { type: "button", class: "choice", "aria-label": `Use ${row.name}`, on: { click: () => this.page.takeJob(this.changed(job)) } }, "Use"),
      ];
    }));
  }

  /** The job of the form with what this row changes, so that no defaults are added to it. */
  changed(job) {
    return { ...this.page.job(), precision: job.precision, gpu: job.gpu, gpus: job.gpus };
  }
}

function list(text) {
  const parts = (text ?? "").split(",").map((part) => part.trim()).filter(Boolean);
  return parts.length ? parts : null;
}

/** What tells a row from the others. */
function name(job, rows) {
  const differs = (field) => rows.some((row) => row.job[field] !== job[field]);
  const gpus = differs("gpu") || differs("gpus") ? `${job.gpus ?? 1} x ${job.gpu}` : "";
  return [differs("precision") || !gpus ? job.precision ?? "fp32" : "", gpus].filter(Boolean).join(", ");
}

/** What all rows share: "resnet50 on 8 x a100-80gb-sxm". */
function common(rows) {
  const first = rows[0].job;
  const same = (field) => rows.every((row) => row.job[field] === first[field]);
  const gpus = [same("gpus") ? `${first.gpus ?? 1} x` : "", same("gpu") ? first.gpu : ""].filter(Boolean).join(" ");
  return `${first.model ?? "a traced model"}${same("precision") ? ` in ${first.precision ?? "fp32"}` : ""}${same("gpu") ? ` on ${gpus}` : ""}.`;
}

function fastest(rows) {
  if (!rows.length) return "none";
  const best = rows.reduce((a, b) => (a.estimate.step.p50 <= b.estimate.step.p50 ? a : b));
  return `${best.name}, ${humanSeconds(best.estimate.step.p50)}`;
}

