// Starts the page: names from the server, the form, and the view that the address names.

import { AccuracyView } from "./accuracy.js";
import { ask } from "./api.js";
import { CompareView } from "./compare.js";
import { h, put } from "./dom.js";
import { Form } from "./form.js";
import { JobsView } from "./jobs.js";
import { title } from "./job.js";
import * as link from "./link.js";
import { PlanView } from "./plan.js";
import { PredictView } from "./predict.js";
import { TextBox } from "./text.js";
import { humanBytes } from "./units.js";

const FIRST = { model: "resnet50", gpu: "a100-80gb-sxm", gpus: 8, precision: "amp-bf16", run: { epochs: 90, price: "aws" } };
/** The job of a page that is opened without one. */
const TITLES = { predict: "Prediction", compare: "Comparison", plan: "Plan", jobs: "Jobs", accuracy: "Accuracy" };
const MAKERS = { predict: PredictView, compare: CompareView, plan: PlanView, jobs: JobsView, accuracy: AccuracyView };
const PAUSE_MS = { predict: 20, compare: 60, plan: 60 };
/** Milliseconds without a change before the server is asked. */

const $ = (id) => document.getElementById(id);
let state = link.read(location.hash);
let view = null;
let form = null;
let text = null;
let timer = 0;

const page = {
  cluster: () => $("cluster").value.trim() || "default",
  job: () => state.job,
  showProblem: (problem) => form.showProblem(problem),
  clearProblem: () => form.clearProblem(),
  jobLink: (id) => link.write({ view: "jobs", cluster: page.cluster(), job: {}, options: { jobs: { id } } }),
  /** A line that stays in sight below the form on a narrow screen. */
  brief: (line) => { $("brief").textContent = line; $("brief").hidden = !line; },
  gpuOptions: () => form.names.gpus.map((gpu) => ({ value: gpu.name, detail: `${gpu.vendor} ${gpu.arch}, ${humanBytes(gpu.memory_bytes)}` })),
  /** A choice of the view changed; it is asked again unless `again` is false. */
  optionsChanged: (again = true) => { remember(); if (again) soon(); },
  /** Takes a job into the form and shows its prediction. */
  takeJob: (job) => { location.hash = link.write({ ...state, job, view: "predict" }); },
};

function remember() {
  history.replaceState(null, "", link.write(state));
  showViews();
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(() => view.update?.(state.job), PAUSE_MS[state.view] ?? 0);
}

function jobChanged(job) {
  state.job = job;
  remember();
  text.show(job);
  $("job-line").textContent = title(job);
  soon();
}

const narrow = matchMedia("(max-width: 58em)");
/** On a narrow screen the form is folded to a line where it is not what the view is about. */
function foldForm() {
  $("form-box").open = !(narrow.matches && state.view !== "predict");
}

function showViews() {
  put($("views"), ...link.VIEWS.map((name) =>
    h("a", { href: link.write({ ...state, view: name }), "aria-current": name === state.view ? "page" : null }, name === "predict" ? "Predict" : TITLES[name] === "Comparison" ? "Compare" : TITLES[name])));
}

/** Shows what the address says. */
function open() {
  const before = view && state.view;
  const { compare, plan } = state.options;
  state = link.read(location.hash);
  if (before) state.options = { ...state.options, ...{ compare, plan }, [state.view]: state.options[state.view] };
  if (!Object.keys(state.job).length) state.job = structuredClone(before ? form.job : FIRST);
  if (document.activeElement !== $("cluster")) $("cluster").value = state.cluster;
  showViews();
  const hasForm = ["predict", "compare", "plan"].includes(state.view);
  $("job").hidden = !hasForm;
  $("main").className = hasForm ? "with-form" : "";
  page.brief("");
  $("answer-title").textContent = TITLES[state.view];
  document.title = `${TITLES[state.view]} – precision-time`;
  form.clearProblem();
  form.show(state.job);
  text.show(state.job);
  $("job-line").textContent = title(state.job);
  foldForm();
  const root = h("div", { class: `view ${state.view}` });
  put($("view"), root);
  view = new MAKERS[state.view](root, page, state.options[state.view]);
  view.update?.(state.job);
  if (before && before !== state.view) {
    scrollTo(0, 0);
    $("answer").focus({ preventScroll: true });
  }
}

async function start() {
  const [models, gpus] = await Promise.all([ask("v1/models"), ask("v1/gpus")]);
  text = new TextBox($("form-box"), (job) => { form.clearProblem(); form.show(job); jobChanged(job); });
  form = new Form($("form-box"), { models: models.models, gpus: gpus.gpus }, jobChanged);
  addEventListener("hashchange", open);
  narrow.addEventListener("change", foldForm);
  for (const id of ["skip", "brief"]) $(id).addEventListener("click", (event) => { event.preventDefault(); $("answer").focus(); });
  $("cluster").addEventListener("change", () => { state.cluster = page.cluster(); remember(); open(); });
  $("copy-link").addEventListener("click", copyLink);
  open();
  showClusters();
}

async function copyLink() {
  const button = $("copy-link");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy the address";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
}

async function showClusters() {
  try {
    const { clusters } = await ask("v1/clusters");
    const names = Array.isArray(clusters) ? clusters.map((each) => each.cluster ?? each.name ?? each) : Object.keys(clusters);
    put($("clusters"), ...names.map((name) => h("option", { value: name })));
  } catch {
    // without the role to read, a cluster is typed
  }
}

start().catch((problem) => put($("view"), h("p", { class: "note wrong", role: "alert" }, problem.message)));
