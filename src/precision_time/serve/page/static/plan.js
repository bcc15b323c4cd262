// The view that searches for what to launch: deadline, budget, objective; the choice, the front, what was left out.

import { latest } from "./api.js";
import { drawFront } from "./charts.js";
import { checks } from "./choose.js";
import { h, newId, put, speak, table, wide } from "./dom.js";
import { change, fixed, humanBytes, humanCount, humanSeconds, interval, percent, secondsInterval, usd } from "./units.js";
import words from "./words.js";

const FIELDS = {
  deadline_hours: { label: "Deadline (hours)", placeholder: "none" },
  budget_usd: { label: "Budget (US dollars)", placeholder: "none" },
  confidence: { label: "Probability", placeholder: "0.9" },
  gpus: { label: "Numbers of GPUs", placeholder: "1..64" },
  global_batch_size: { label: "Global batch", placeholder: "as in the job" },
  gpu: { label: "GPU types", placeholder: "all that providers offer" },
};
const GOAL = ["deadline_hours", "budget_usd", "confidence"];
const request = latest();

/** The view in `root`; `options` are its texts of the link. */
export class PlanView {
  constructor(root, page, options) {
    this.root = root;
    this.page = page;
    this.options = options;
    this.inputs = {};
    this.providers = checks("Providers", words.providers.filter((name) => name !== "any"), split(options.providers), () => this.choose());
    this.precisions = checks("Precisions", Object.keys(words.precisions), split(options.precision), () => this.choose());
    const objective = newId("objective");
    this.objective = h("select", { id: objective, on: { change: () => this.choose() } },
      words.objectives.map((each) => h("option", { value: each, selected: each === options.objective }, each === "co2" ? "CO2" : each)));
    this.button = h("button", { type: "submit", class: "main" }, "Plan");
    this.result = h("div", { class: "plan" });
    root.append(
      h("form", { class: "panel choices", "aria-label": "Goal", on: { submit: (event) => { event.preventDefault(); this.plan(); } } },
        h("div", { class: "fields" }, Object.keys(FIELDS).map((name) => this.field(name)),
          h("div", { class: "field" }, h("label", { for: objective }, "Minimise"), this.objective)),
        this.providers.element, this.precisions.element,
        h("div", { class: "row" }, this.button, h("small", { class: "soft" }, "No provider: all. No precision: that of the job."))),
      this.result);
  }

  field(name) {
    const id = newId("goal");
    const input = h("input", { id, type: "text", placeholder: FIELDS[name].placeholder, value: this.options[name] ?? "", autocomplete: "off", "aria-describedby": `${id}-error`, on: { input: () => this.choose() } });
    const error = h("div", { class: "problem", id: `${id}-error` });
    this.inputs[name] = { input, error };
    return h("div", { class: "field" }, h("label", { for: id }, FIELDS[name].label), input, error);
  }

  choose() {
    for (const [name, { input }] of Object.entries(this.inputs)) this.options[name] = input.value.trim();
    this.options.providers = this.providers.values().join(",");
    this.options.precision = this.precisions.values().join(",");
    this.options.objective = this.objective.value === "cost" ? "" : this.objective.value;
    this.page.optionsChanged(false);
  }

  /** A plan takes seconds: it is made again when asked, and at once where the link brings a goal. */
  update(job) {
    const asked = this.options.deadline_hours || this.options.budget_usd || this.options.run;
    if (!this.shown && asked) this.plan();
    else if (this.shown) {
      const old = JSON.stringify(job) !== this.shown;
      this.result.classList.toggle("old", old);
      this.button.textContent = old ? "Plan again, for the changed job" : "Plan";
    }
  }

  async plan() {
    if (this.button.hasAttribute("aria-disabled")) return;
    const job = this.page.job();
    this.options.run = "1";
    this.page.optionsChanged(false);
    this.clear();
    this.result.classList.add("waiting");
    this.button.setAttribute("aria-disabled", "true"); // `disabled` would take the focus away
    this.button.textContent = "Planning ...";
    try {
      const found = await request("v1/plan", { job, cluster: this.page.cluster(), ...this.asked() });
      this.page.clearProblem();
      this.result.classList.remove("old");
      this.shown = JSON.stringify(job);
      this.show(found);
    } catch (problem) {
      if (problem.name !== "AbortError") this.refuse(problem);
    }
    this.button.removeAttribute("aria-disabled");
    this.button.textContent = "Plan";
    this.result.classList.remove("waiting");
  }

  asked() {
    const { options } = this;
    const number = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);
    const goal = Object.fromEntries(GOAL.filter((name) => options[name]).map((name) => [name, number(options[name])]));
    if (options.objective) goal.objective = options.objective;
    const space = {};
    if (options.gpus) space.gpus = options.gpus;
    if (options.global_batch_size) space.global_batch_size = number(options.global_batch_size);
    if (options.gpu) space.gpu = split(options.gpu);
    if (options.providers) space.providers = split(options.providers);
    if (options.precision) space.precision = split(options.precision);
    return { goal, space };
  }

  clear() {
    for (const { input, error } of Object.values(this.inputs)) {
      input.removeAttribute("aria-invalid");
      put(error);
    }
  }

  refuse(problem) {
    const name = (problem.field ?? "").split(".").at(-1);
    const at = this.inputs[name];
    if (at && !(name in this.page.job())) {
      at.input.setAttribute("aria-invalid", "true");
      put(at.error, h("p", {}, problem.message));
      at.input.focus();
    } else if (problem.field) {
      this.page.showProblem(problem);
    }
    put(this.result, h("p", { class: "note wrong" }, problem.message));
    speak(problem.message);
  }

  show(plan) {
    const { chosen, front, left_out: left, worth_measuring: worth } = plan;
    const chart = h("div", { class: "chart" });
    put(this.result,
      h("section", { class: "panel chosen" }, h("h3", {}, "Launch"),
        h("p", { class: "headline" }, `${named(chosen)}, ${chosen.layout}, batch ${chosen.batch_size}${chosen.grad_accum > 1 ? ` x ${chosen.grad_accum}` : ""}`),
        h("p", { class: "soft" }, rented(chosen)),
        chosen.learned ? h("p", { class: "note" }, `Step corrected by ${change(chosen.learned.factor)} by ${fixed(chosen.learned.outcomes, 0)} outcome${chosen.learned.outcomes === 1 ? "" : "s"} of cluster ${chosen.learned.cluster}; every option is corrected by its own GPU and precision.`) : null,
        h("div", { class: "cards" }, facts(chosen, plan.goal)),
        h("div", { class: "row" }, h("button", { type: "button", on: { click: () => this.use(chosen) } }, "Put it into the form"))),
      h("figure", {}, h("figcaption", {}, "Time and cost of the run in the median: nothing tried is both faster and cheaper than a point of the line", h("span", { class: "soft" }, " Grey: other options. Dashed: deadline and budget. Circle: the choice.")), chart),
      wide("Options on the front", this.table(front)),
      h("p", { class: "soft" }, `${fixed(plan.tried, 0)} candidates tried at a global batch of ${fixed(plan.global_batch_size, 0)}; ${fixed(plan.meet_the_goal, 0)} options, each a candidate with something to rent, meet the goal.`),
      left.length ? h("section", {}, h("h3", {}, "Left out"), h("ul", {}, left.map((each) => h("li", {}, `${fixed(each.count, 0)} ${each.reason}${each.nearest ? `: ${each.nearest}` : ""}`)))) : null,
      h("details", {}, h("summary", {}, "What this rests on"), h("ul", {}, plan.basis.map((each) => h("li", {}, each)))),
      worth ? h("p", { class: "note" }, `Worth measuring first: ${worth.job.gpus} x ${worth.job.gpu}, ${worth.job.precision}. It narrows the step from ±${percent(worth.half_width_before)} to ±${percent(worth.half_width_after)}.`) : null);
    drawFront(chart, plan);
    speak(`Launch ${named(chosen)}: ${humanSeconds(chosen.finish_s.p50)}, ${usd(chosen.cost_usd.p50)}.`);
  }

  table(front) {
    const one = new Set(front.map((option) => option.precision)).size === 1;
    const heads = [{ text: "option", left: true }, { text: "rented", left: true }, "time", "P10 to P90", "cost", "energy", "goal met", ""];
    return table("Options that no other beats in both time and cost", heads, front.map((option) => {
      const time = secondsInterval(option.finish_s);
      return [
        `${one ? `${option.gpus} x ${option.gpu}` : named(option)}, batch ${option.batch_size}`, option.rented ? option.rented.instance || option.rented.provider : "", time.middle, time.ends,
        option.cost_usd ? usd(option.cost_usd.p50) : "", option.energy_kwh ? `${humanCount(option.energy_kwh.p50)} kWh` : "", percent(option.chance),
        h("button", { type: "button", class: "choice", "aria-label": `Use ${named(option)}`, on: { click: () => this.use(option) } }, "Use"),
      ];
    }));
  }

  use(option) {
    const { gpu, gpus, precision, layout, batch_size: batch, grad_accum: accumulation, recompute } = option.job;
    this.page.takeJob({ ...this.page.job(), gpu, gpus, precision, layout, batch_size: batch, grad_accum: accumulation, recompute });
  }
}

function named(option) {
  return `${option.gpus} x ${option.gpu}, ${option.precision}`;
}

function rented({ rented: of }) {
  if (!of) return "";
  const { provider, instance, region, usd_per_hour: price, as_of: day } = of;
  return `${[provider, instance, region].filter(Boolean).join(", ")}: ${usd(price)} an hour${day ? `, price of ${day}` : ""}`;
}

function facts(option, goal) {
  const card = (name, { middle, ends }, further) => h("div", { class: "card" }, h("h3", {}, name), h("p", { class: "big" }, middle),
    ends ? h("p", { class: "ends" }, h("span", { class: "soft" }, "P10–P90 "), ends) : null, further ? h("p", { class: "soft" }, further) : null);
  const sure = (name, share) => `${name} with ${percent(share)}`;
  return [
    card("Finished after", secondsInterval(option.finish_s), goal.deadline_hours ? sure("in time", option.in_time) : null),
    option.cost_usd ? card("Cost", interval(option.cost_usd, usd), goal.budget_usd ? sure("in the budget", option.in_budget) : null) : null,
    card("Memory of a GPU", { middle: humanBytes(option.peak_bytes) }, sure("fits", option.fits)),
    card("Goal met", { middle: percent(option.chance) }, `asked: ${percent(goal.confidence)}`),
  ];
}

function split(text) {
  return (text ?? "").split(",").map((part) => part.trim()).filter(Boolean);
}
