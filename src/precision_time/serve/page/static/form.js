// The form of a job: one control for each field of the field table. The job itself is the truth; controls show it.

import { combobox } from "./combobox.js";
import { h, newId, put } from "./dom.js";
import { fieldOf, fieldsOf, get, isObject, set, typed, written } from "./job.js";
import { humanBytes, humanCount } from "./units.js";
import words from "./words.js";

const MAIN = ["model", "gpu", "gpus", "precision", "batch_size", "layout"];
const LENGTH = ["run.epochs", "run.steps", "run.dataset", "run.price"];
const NAMES = {
  model: "Model", gpu: "GPU", gpus: "GPUs", precision: "Precision", batch_size: "Batch per GPU",
  layout: "Layout", "run.epochs": "Epochs", "run.steps": "or steps",
  "input.seq_len": "Sequence length", "run.dataset": "Data set", "run.price": "Price list",
  "run.samples": "Samples to train on", "data.samples": "Samples of an epoch",
};
const LAYOUTS = {
  dp: "a copy of the model on every GPU", fsdp: "weights, gradients and states sharded", zero1: "states sharded",
  zero2: "states and gradients sharded", zero3: "as fsdp", "tp=8": "tensor parallelism", "tp=8,pp=4": "and pipelines",
};
const INSIDE = ["model_config", "input", "run", "data"];
/** Fields of the job whose own fields have controls. */
const SETTLE_MS = 600;
/** How long an error waits while the user types. */

/** "image_size" -> "Image size". */
function readable(name) {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The form in `root`. `changed(job)` is called with every change; `names` has the models and GPUs of the server. */
export class Form {
  constructor(root, names, changed) {
    this.root = root;
    this.names = names;
    this.changed = changed;
    this.job = {};
    this.controls = new Map();
    this.models = new Map(names.models.map((model) => [model.name, model]));
    this.inputs = h("div", { class: "fields" });
    this.shape = h("div", { class: "fields" });
    this.general = h("div", { class: "problem", role: "alert" });
    this.element = h("form", { class: "job", "aria-label": "Fields of the job", on: { submit: (event) => event.preventDefault() } },
      h("div", { class: "fields" }, MAIN.map((path) => this.control(path))),
      this.inputs,
      h("fieldset", {}, h("legend", {}, "Length and price"), h("div", { class: "fields" }, LENGTH.map((path) => this.control(path)))),
      this.more("Training", fieldsOf("job").map((field) => field.path).filter((path) => !MAIN.includes(path) && !INSIDE.includes(path))),
      this.shapeGroup = h("details", {}, h("summary", {}, "Shape of the model"), this.shape),
      this.more("Run", fieldsOf("run").map((field) => field.path).filter((path) => !LENGTH.includes(path))),
      this.more("Data loading", fieldsOf("data").map((field) => field.path)),
      this.general);
    root.append(this.element);
  }

  more(name, paths) {
    return h("details", {}, h("summary", {}, name), h("div", { class: "fields" }, paths.map((path) => this.control(path, true))));
  }

  /** The control of a field, with its label, hint, and a place for its error. */
  control(path, hinted = false) {
    const field = fieldOf(path, this.job.model) ?? { name: path, kind: "text" };
    const id = newId("field");
    const hint = hinted && field.meaning ? h("small", { id: `${id}-hint` }, field.meaning) : null;
    const attributes = {
      id, "aria-describedby": hint ? `${id}-hint ${id}-error` : `${id}-error`,
      title: `${path}: ${hinted ? field.range : field.meaning}`,
    };
    const error = h("div", { id: `${id}-error`, class: "problem" });
    const control = this.input(path, field, attributes);
    const label = h("label", { for: id }, NAMES[path] ?? readable(field.name));
    const element = h("div", { class: `field${path === "model" || path === "gpu" ? " broad" : ""}` }, label, control.element, hint, error);
    this.controls.set(path, { ...control, error });
    return element;
  }

  input(path, field, attributes) {
    const change = (text, done) => this.type(path, text, done);
    const options = this.options(path);
    if (options) return combobox(NAMES[path] ?? field.name, options, change, attributes);
    if (field.kind === "choice" || field.kind === "switch") {
      const choices = field.kind === "switch" ? ["true", "false"] : field.choices;
      const input = h("select", { ...attributes, on: { change: () => change(input.value, true) } },
        h("option", { value: "" }, "default"), choices.map((choice) => h("option", { value: choice }, choice)));
      return { input, element: input };
    }
    const numeric = (field.kind === "whole" || field.kind === "number") && !/list/.test(field.range);
    const input = h("input", {
      type: "text", inputmode: numeric ? "decimal" : null, autocomplete: "off", spellcheck: "false", ...attributes,
      on: { input: () => change(input.value, false), blur: () => change(input.value, true) },
    });
    return { input, element: input };
  }

  /** What completes a field, or null. */
  options(path) {
    const plain = (names) => () => names.map((value) => ({ value }));
    return {
      model: () => this.names.models.map((m) => ({ value: m.name, detail: `${m.family}, ${humanCount(m.parameters / 1e6)} M parameters` })),
      gpu: () => this.names.gpus.map((g) => ({ value: g.name, detail: `${g.vendor} ${g.arch}, ${humanBytes(g.memory_bytes)}` })),
      precision: () => Object.entries(words.precisions).map(([value, detail]) => ({ value, detail })),
      layout: () => Object.entries(LAYOUTS).map(([value, detail]) => ({ value, detail })),
      node: plain(words.nodes),
      "run.dataset": plain(words.datasets),
      "run.price": plain(words.providers),
      "run.checkpoint_storage": plain(words.storages),
      "data.storage": plain(words.storages),
    }[path] ?? null;
  }

  type(path, text, done) {
    const value = typed(path, text);
    if (done) this.settle();
    if (JSON.stringify(value) === JSON.stringify(get(this.job, path))) return;
    let job = set(this.job, path, value);
    if (path === "model") {
      for (const section of ["input", "model_config"]) job = this.kept(job, section);
    }
    this.typedAt = done ? 0 : performance.now();
    this.show(job, path);
    this.changed(this.job);
  }

  /** The job without those shape fields that its model does not have. */
  kept(job, section) {
    const model = this.models.get(job.model);
    if (!model || !isObject(job[section])) return job;
    const inside = Object.entries(job[section]).filter(([key]) => key in model[section]);
    const { [section]: _, ...rest } = job;
    return inside.length ? { ...rest, [section]: Object.fromEntries(inside) } : rest;
  }

  /** Shows a job; the control at `typing` keeps what the user types. */
  show(job, typing = "") {
    const before = this.job.model;
    this.job = job;
    if (job.model !== before || !this.shown) this.showShape();
    this.shown = true;
    for (const [path, { input }] of this.controls) {
      if (path !== typing) input.value = written(get(job, path));
    }
    this.showDefaults();
  }

  /** Controls for the input sizes and the shape of the model. */
  showShape() {
    const model = this.models.get(this.job.model);
    const paths = (section) => (model ? Object.keys(model[section]).map((key) => `${section}.${key}`) : []);
    for (const path of [...this.controls.keys()]) if (/^(input|model_config)\./.test(path)) this.controls.delete(path);
    put(this.inputs, ...paths("input").map((path) => this.control(path)));
    this.inputs.hidden = !this.inputs.children.length;
    put(this.shape, ...paths("model_config").map((path) => this.control(path, true)));
    this.shapeGroup.hidden = !this.shape.children.length;
  }

  showDefaults() {
    const model = this.models.get(this.job.model);
    const defaults = {
      gpu: "a100-80gb-sxm", gpus: "1", precision: "fp32", layout: "dp", batch_size: model ? written(model.batch_size) : "",
      optimizer: model?.optimizer, "run.dataset": model?.dataset, grad_accum: "1",
    };
    for (const section of ["input", "model_config"]) {
      for (const [key, value] of Object.entries(model?.[section] ?? {})) defaults[`${section}.${key}`] = written(value);
    }
    for (const [path, value] of Object.entries(defaults)) {
      const input = this.controls.get(path)?.input;
      if (input && input.tagName === "INPUT") input.placeholder = value ?? "";
    }
  }

  /** Shows what the server refused: at the field where it has one, with the nearest choices as buttons. While the user
   * types in that field, the error waits for a pause. */
  showProblem(problem) {
    this.clearProblem();
    const path = this.pathOf(problem.field) || this.pathOfValue(problem.message);
    const control = this.controls.get(path);
    const show = () => {
      const place = control?.error ?? this.general;
      control?.input.setAttribute("aria-invalid", "true");
      control?.input.closest("details")?.setAttribute("open", "");
      const nearest = control ? problem.nearest : [];
      const sentence = nearest.length ? problem.message.replace(/; nearest: .*$/s, ". Nearest:") : problem.message;
      put(place, h("p", {}, sentence), this.choices(path, nearest));
    };
    const typing = control && document.activeElement === control.input && this.typedAt;
    const late = () => { this.pending = null; show(); };
    this.pending = typing ? { show, timer: setTimeout(late, SETTLE_MS) } : null;
    if (!typing) show();
  }

  choices(path, nearest) {
    return nearest.map((choice) => h("button", { type: "button", class: "choice", on: { click: () => this.take(path, choice) } }, choice));
  }

  take(path, choice) {
    this.controls.get(path).input.focus();
    this.show(set(this.job, path, typed(path, choice)));
    this.changed(this.job);
  }

  /** The path of the control that a problem's field means: "gpu", "run.epochs", "job.gpu" or "epochs". */
  pathOf(field) {
    if (!field) return "";
    if (["tp", "pp", "cp", "ep", "dp", "vpp", "zero"].includes(field)) return "layout";
    const name = field.replace(/^job\./, "").replace(/\[\d+\]$/, "");
    const paths = [...this.controls.keys()];
    return paths.find((path) => path === name) ?? paths.find((path) => path.split(".")[1] === name) ?? name;
  }

  /** The path of the control whose value a sentence quotes: "unknown GPU 'a100x'". */
  pathOfValue(sentence) {
    return [...this.controls.keys()].find((path) => {
      const value = written(get(this.job, path));
      return value !== "" && (sentence.includes(`'${value}'`) || sentence.includes(`"${value}"`));
    }) ?? "";
  }

  settle() {
    this.typedAt = 0;
    if (!this.pending) return;
    clearTimeout(this.pending.timer);
    this.pending.show();
    this.pending = null;
  }

  clearProblem() {
    if (this.pending) clearTimeout(this.pending.timer);
    this.pending = null;
    put(this.general);
    for (const { input, error } of this.controls.values()) {
      if (error.firstChild) put(error);
      input.removeAttribute("aria-invalid");
    }
  }
}
