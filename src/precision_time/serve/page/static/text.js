// A job as text: shown as YAML, and read from pasted or dropped files of the job or of other programs by the server.

import { ask } from "./api.js";
import { h, newId } from "./dom.js";
import { asYaml } from "./job.js";

const LARGEST = 512 * 1024;
const PAUSE_MS = 250;

/** The box below the form. `taken(job)` is called with every job that was read. */
export class TextBox {
  constructor(root, taken) {
    this.taken = taken;
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
    if (document.activeElement !== this.area) this.area.value = asYaml(job);
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(this.area.value, "job.yaml", false), PAUSE_MS);
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
      const found = await ask("v1/import", { text, name });
      const notes = (found.notes ?? []).map((note) => (typeof note === "string" ? note : JSON.stringify(note)));
      this.say([`Read as ${found.kind}.`, ...notes], false);
      this.taken(found.job);
      if (shown) this.area.value = asYaml(found.job);
    } catch (problem) {
      this.say([problem.message], true);
    }
  }

  say(lines, wrong) {
    this.notes.className = wrong ? "notes problem" : "notes";
    this.notes.replaceChildren(...lines.map((line) => h("p", {}, line)));
  }
}
