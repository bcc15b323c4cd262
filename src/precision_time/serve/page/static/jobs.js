// The view of kept predictions with their outcomes, and the form that records one.

import { ask } from "./api.js";
import { h, newId, put, speak, table, wide } from "./dom.js";
import { title } from "./job.js";
import { humanBytes, humanSeconds, moment, percent, secondsInterval } from "./units.js";

const TIMES = { us: 1e-6, ms: 1e-3, s: 1, sec: 1, m: 60, min: 60, h: 3600, d: 86400, day: 86400, days: 86400 };
const SIZES = { b: 1, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3, tib: 1024 ** 4, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 };
const FIELDS = {
  step_s: { label: "Median step", placeholder: "126 ms", read: (text) => quantity(text, TIMES, "s") },
  run_s: { label: "Run, from launch to end", placeholder: "2.5 h", read: (text) => quantity(text, TIMES, "s") },
  peak_bytes: { label: "Peak memory of the fullest GPU", placeholder: "13.3 GiB", read: (text) => quantity(text, SIZES, "GiB", true) },
};

/** A number with its unit ("126 ms", "1 h 20 min") in the base unit; NaN where it is none. */
export function quantity(text, units, usual, whole = false) {
  const parts = [...text.trim().matchAll(/\s*([\d.,]+)\s*([a-z]*)/gi)];
  if (!parts.length || parts.map((part) => part[0]).join("") !== text.trim()) return NaN;
  const total = parts.reduce((sum, [, number, unit]) => sum + Number(number.replaceAll(",", "")) * (units[(unit || usual).toLowerCase()] ?? NaN), 0);
  return whole ? Math.round(total) : total;
}

/** The median of the steps of an outcome, or null. */
export function measuredStep(outcome) {
  if (outcome.step_s) return outcome.step_s;
  const steps = [...(outcome.steps_s ?? [])].sort((a, b) => a - b);
  return steps.length ? steps[Math.floor(steps.length / 2)] : null;
}

/** The view in `root`; `options` may name a prediction by `id`. */
export class JobsView {
  constructor(root, page, options) {
    this.page = page;
    this.options = options;
    this.list = h("div", {});
    this.detail = h("div", { class: "detail" });
    this.rows = [];
    root.append(this.detail, this.list);
  }

  async update() {
    try {
      await Promise.all([this.load(), this.options.id ? this.open(this.options.id) : null]);
      speak(this.spoken());
      // The link that was followed is gone with the former list.
      if (document.activeElement === document.body) this.detail.firstChild?.focus({ preventScroll: true });
    } catch (problem) {
      put(this.list, h("p", { class: "note wrong", role: "alert" }, problem.message));
    }
  }

  spoken() {
    const count = this.rows.length === 1 ? "1 prediction" : `${this.rows.length} predictions`;
    return `${this.options.id ? "The prediction and its outcomes. " : ""}Cluster ${this.page.cluster()}: ${count}.`;
  }

  async load(before = null) {
    const query = new URLSearchParams({ cluster: this.page.cluster(), limit: 50, ...(before ? { before } : {}) });
    const { predictions, next } = await ask(`v1/predictions?${query}`);
    this.rows = before ? [...this.rows, ...predictions] : predictions;
    if (!this.rows.length) {
      put(this.list, h("p", {}, `Cluster ${this.page.cluster()} has no predictions yet. Keep one in the view Predict, or `, h("code", {}, "POST /v1/predict"), "."));
      return;
    }
    const heads = [{ text: "job", left: true }, { text: "predicted on", left: true }, "step", "P10 to P90", "measured", { text: "difference", left: true }, "outcomes"];
    put(this.list,
      wide("Predictions", table("Predictions, the latest first", heads, this.rows.map((row) => this.row(row)), { class: "jobs" })),
      next ? h("button", { type: "button", on: { click: () => this.load(next) } }, "Older") : "");
  }

  row(row) {
    const step = secondsInterval(row.step);
    const outcome = row.outcomes.findLast((each) => measuredStep(each));
    const measured = outcome ? measuredStep(outcome) : null;
    return [
      h("a", { href: this.page.jobLink(row.id), "aria-current": row.id === this.options.id ? "true" : null }, title(row.job)),
      moment(row.made_at), step.middle, step.ends, measured ? humanSeconds(measured) : "", measured ? difference(measured, row.step) : "", String(row.outcomes.length || ""),
    ];
  }

  async open(id) {
    const { prediction, outcomes } = await ask(`v1/predictions/${encodeURIComponent(id)}`);
    const { estimate } = prediction;
    const step = secondsInterval(estimate.step);
    put(this.detail, h("section", { class: "panel", "aria-label": "Prediction and outcomes", tabindex: "-1" },
      h("h3", {}, title(prediction.job)),
      h("p", { class: "soft" }, `Predicted on ${moment(prediction.made_at)} for cluster ${prediction.cluster} as `, h("code", {}, prediction.id)),
      h("p", {}, `Step ${step.middle} (${step.ends})`, estimate.run ? `; run ${humanSeconds(estimate.run.p50)}` : "", `; memory ${humanBytes(estimate.memory.peak_bytes)}.`),
      outcomes.length ? wide("Outcomes", outcomesTable(outcomes, estimate)) : h("p", {}, "No outcome is recorded yet."),
      this.form(id),
      h("div", { class: "row" },
        h("button", { type: "button", on: { click: () => this.page.takeJob(prediction.job) } }, "Put the job into the form"),
        h("button", { type: "button", on: { click: () => this.close() } }, "Close"))));
  }

  close() {
    this.options.id = "";
    this.page.optionsChanged(false);
    put(this.detail);
    document.getElementById("answer").focus({ preventScroll: true });
    this.load();
  }

  /** The form of an outcome. */
  form(id) {
    const inputs = {};
    const fields = Object.entries(FIELDS).map(([name, of]) => {
      const [own, error] = [newId("outcome"), newId("error")];
      inputs[name] = { input: h("input", { id: own, name, type: "text", placeholder: of.placeholder, autocomplete: "off", "aria-describedby": error }), error: h("div", { class: "problem", id: error }) };
      return h("div", { class: "field" }, h("label", { for: own }, of.label), inputs[name].input, inputs[name].error);
    });
    const [finished, host] = [newId("finished"), newId("host")];
    const end = h("select", { id: finished }, h("option", { value: "" }, "not known"), h("option", { value: "true" }, "yes"), h("option", { value: "false" }, "no"));
    const node = h("input", { id: host, type: "text", placeholder: "node17", autocomplete: "off", spellcheck: "false" });
    const general = h("div", { class: "problem", role: "alert" });
    const send = async (event) => {
      event.preventDefault();
      const outcome = this.read(inputs);
      if (!outcome) return;
      if (end.value) outcome.finished = end.value === "true";
      if (node.value.trim()) outcome.machine = { host: node.value.trim() };
      await this.record(id, outcome, general, inputs);
    };
    return h("form", { class: "outcome", "aria-label": "Record an outcome", on: { submit: send } },
      h("h4", {}, "Record an outcome"),
      h("div", { class: "fields" }, fields,
        h("div", { class: "field" }, h("label", { for: finished }, "All steps were done"), end),
        h("div", { class: "field" }, h("label", { for: host }, "Host"), node)),
      general,
      h("button", { type: "submit", class: "main" }, "Record"));
  }

  read(inputs) {
    const outcome = {};
    let good = true;
    for (const [name, { input, error }] of Object.entries(inputs)) {
      put(error);
      input.removeAttribute("aria-invalid");
      if (!input.value.trim()) continue;
      outcome[name] = FIELDS[name].read(input.value);
      if (Number.isFinite(outcome[name]) && outcome[name] > 0) continue;
      put(error, h("p", {}, `${input.value.trim()} is no positive number with a unit; write it as ${FIELDS[name].placeholder}`));
      input.setAttribute("aria-invalid", "true");
      if (good) input.focus();
      good = false;
    }
    return good ? outcome : null;
  }

  async record(id, outcome, general, inputs) {
    try {
      await ask(`v1/predictions/${encodeURIComponent(id)}/outcomes`, outcome);
      await Promise.all([this.open(id), this.load()]);
      this.detail.querySelector("[role=region]")?.focus({ preventScroll: true });
      speak("The outcome is recorded.");
    } catch (problem) {
      put(inputs[problem.field]?.error ?? general, h("p", {}, problem.message));
    }
  }
}

function outcomesTable(outcomes, estimate) {
  const heads = [{ text: "recorded on", left: true }, "step", { text: "difference", left: true }, "run", "memory", { text: "finished", left: true }, { text: "machine", left: true }];
  return table("Outcomes", heads, outcomes.map((outcome) => {
    const step = measuredStep(outcome);
    const machine = Object.entries(outcome.machine ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
    return [
      moment(outcome.recorded_at), step ? humanSeconds(step) : "", step ? difference(step, estimate.step) : "", outcome.run_s ? humanSeconds(outcome.run_s) : "",
      outcome.peak_bytes ? humanBytes(outcome.peak_bytes) : "", outcome.finished === null ? "" : outcome.finished ? "yes" : "no", machine,
    ];
  }));
}

/** "8 % slower, inside P10 to P90" */
function difference(measured, step) {
  const ratio = measured / step.p50;
  const size = percent(Math.abs(ratio - 1), Math.abs(ratio - 1) < 0.1 ? 1 : 0);
  const inside = measured >= step.p10 && measured <= step.p90;
  const words = ratio === 1 ? "as predicted" : `${size} ${ratio > 1 ? "slower" : "faster"}`;
  return h("span", { class: inside ? "yes" : "no" }, `${words}, ${inside ? "inside" : "outside"} P10 to P90`);
}
