// A job as text: shown as YAML, and read from pasted or dropped files of the job or of other programs by the server.

import { ask } from "./api.js";
import { h, newId, put } from "./dom.js";
import { asYaml } from "./job.js";

const LARGEST = 512 * 1024;
const PAUSE_MS = 250;
const OF_MODEL = ["model", "model_config", "input"];
const OF_FORM = ["gpu", "gpus", "run"];
/** What the form keeps where a file of another program has none. */

/** The box below the form. `taken(job)` is called with every job that was read. */
export class TextBox {
  constructor(root, taken) {
    this.taken = taken;
    this.current = {};
    const id = newId("text");
    this.area = h("textarea", {
      id, rows: "10", spellcheck: "false", autocapitalize: "off", "aria-describedby": `${id}-hint ${id}-notes`,
      on: { input: () => this.typed() },
    });
    this.file = h("input", { type: "file", class: "hidden", id: `${id}-file`, tabindex: "-1", on: { change: () => this.open(this.file.files[0]) } });
    this.notes = h("div", { id: `${id}-notes`, class: "notes", role: "status" });
    this.details = h("details", { class: "as-text" },
      h("summary", {}, "As text, or from a file"),
      h("label", { for: id }, "Job as YAML or JSON"),
      this.area,
      h("div", { class: "row" },
        h("button", { type: "button", on: { click: () => this.file.click() } }, "Open a file"),
        h("label", { class: "hidden", for: `${id}-file` }, "File with the job")),
      this.file,
      h("p", { class: "soft", id: `${id}-hint` },
        "Paste or drop a job file, TrainingArguments, a config of accelerate, Lightning, DeepSpeed, torchtitan, llm-foundry, Axolotl, NeMo or Megatron, an sbatch script or a Kubernetes manifest. Only its text is read."),
      this.notes);
    root.append(this.details);
    this.takeDrops();
  }

  takeDrops() {
    const over = (on) => document.body.classList.toggle("dropping", on);
    addEventListener("dragover", (event) => { event.preventDefault(); over(true); });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
    addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      this.open(event.dataTransfer.files[0]);
    });
  }

  /** Shows a job, unless the user is writing here. */
  show(job) {
    this.current = job;
    if (document.activeElement !== this.area) this.area.value = asYaml(job);
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(this.area.value, "", false), PAUSE_MS);
  }

  async open(file) {
    if (!file) return;
    this.details.open = true;
    if (file.size > LARGEST) {
      this.say([`${file.name} has ${Math.round(file.size / 1024)} KiB; files of at most 512 KiB are read.`], true);
      return;
    }
    await this.read(await file.text(), file.name.replace(/[^\w. -]/g, "_"), true);
    this.file.value = "";
  }

  async read(text, name, shown) {
    if (!text.trim()) return;
    try {
      const found = await ask("v1/import", { text, ...nameOf(text, name) });
      const notes = (found.notes ?? []).map((note) => (typeof note === "string" ? note : JSON.stringify(note)));
      this.say([`Read as ${found.kind}.`, ...notes], false);
      const job = found.kind === "job file" ? found.job : this.completed(found.job);
      this.taken(job);
      if (shown) this.area.value = asYaml(job);
    } catch (problem) {
      this.say([problem.message], true);
    }
  }

  /** The job of another program's file, which often has no model, with the model, GPUs and length of the form. */
  completed(job) {
    const { current } = this;
    const kept = [...(job.model ? [] : OF_MODEL), ...OF_FORM].filter((name) => name in current && (!(name in job) || (name === "gpus" && job.gpus === 1)));
    return { ...job, ...Object.fromEntries(kept.map((name) => [name, current[name]])) };
  }

  say(lines, wrong) {
    this.notes.className = wrong ? "notes problem" : "notes";
    put(this.notes, ...lines.map((line) => h("p", {}, line)));
  }
}

/** The name that says how pasted text is written: YAML where its first line is a key. */
function nameOf(text, name) {
  if (name) return { name };
  const first = text.split("\n").map((line) => line.trim()).find((line) => line && !line.startsWith("#"));
  return /^[\w"'.-]+:(\s|$)/.test(first ?? "") && !/^#(!|SBATCH)/m.test(text) ? { name: "pasted.yaml" } : {};
}
