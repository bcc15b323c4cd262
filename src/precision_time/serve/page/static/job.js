// A job as an object of the job file's words, and its fields by path: "batch_size", "run.epochs", "input.seq_len".

import words from "./words.js";

export const SECTIONS = ["run", "data", "lora", "input", "model_config"];
/** Fields of the job that hold others. */

const byPath = new Map();
for (const field of words.fields) {
  const path = field.section === "job" ? field.name : `${field.section}.${field.name}`;
  field.path = path;
  if (!byPath.has(path)) byPath.set(path, []);
  byPath.get(path).push(field);
}

/** The field of a path; where models differ in its range, that of `model`. */
export function fieldOf(path, model) {
  const fields = byPath.get(path);
  return fields?.find((field) => field.models?.includes(model)) ?? fields?.[0];
}

/** All fields of a section, one each. */
export function fieldsOf(section) {
  return [...byPath.values()].map((fields) => fields[0]).filter((field) => field.section === section);
}

export function get(job, path) {
  const [section, name] = split(path);
  return section ? (isObject(job[section]) ? job[section][name] : undefined) : job[name];
}

/** Another job with the value at the path; undefined removes it. */
export function set(job, path, value) {
  const [section, name] = split(path);
  const changed = { ...job };
  const inside = section ? (isObject(job[section]) ? { ...job[section] } : {}) : changed;
  if (value === undefined) delete inside[name];
  else inside[name] = value;
  if (section && Object.keys(inside).length) changed[section] = inside;
  else if (section) delete changed[section];
  return changed;
}

function split(path) {
  const at = path.indexOf(".");
  return at > 0 && SECTIONS.includes(path.slice(0, at)) ? [path.slice(0, at), path.slice(at + 1)] : ["", path];
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** [path, value] of every value that is set, those of sections by their paths. */
export function entries(job) {
  return Object.entries(job).flatMap(([name, value]) =>
    SECTIONS.includes(name) && isObject(value)
      ? Object.entries(value).map(([key, inside]) => [`${name}.${key}`, inside])
      : [[name, value]]);
}

/** A value as a user types it. */
export function written(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** What a user typed as a value of the field: a number where it is one, a list or mapping where it is written as JSON. */
export function typed(path, text) {
  const given = text.trim();
  if (given === "") return undefined;
  const kind = fieldOf(path)?.kind ?? "text";
  if ((kind === "whole" || kind === "number") && /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(given)) return Number(given);
  if (kind === "switch" && (given === "true" || given === "false")) return given === "true";
  if (/^[[{]/.test(given)) {
    try {
      return JSON.parse(given);
    } catch {
      return given;
    }
  }
  return given;
}

/** One line: "resnet50, amp-bf16, 8 x a100-80gb-sxm". */
export function title(job) {
  const schedule = Array.isArray(job.schedule) && job.schedule.length ? job.schedule.map((part) => part.precision) : [];
  const precision = schedule.length ? schedule.join(" then ") : job.precision ?? "fp32";
  return `${job.model ?? "a traced model"}, ${precision}, ${job.gpus ?? 1} x ${job.gpu ?? "a100-80gb-sxm"}`;
}

/** The job as YAML, which any YAML or job-file reader takes: strings that could be read otherwise are quoted. */
export function asYaml(job) {
  const line = ([key, value], indent = "") => {
    if (isObject(value) && Object.keys(value).length && indent === "" && SECTIONS.includes(key)) {
      return [`${key}:`, ...Object.entries(value).map((entry) => line(entry, "  "))].join("\n");
    }
    return `${indent}${key}: ${scalar(value)}`;
  };
  return Object.entries(job).map((entry) => line(entry)).join("\n") + "\n";
}

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  const plain = /^[A-Za-z_][\w./+-]*$/.test(value) && !/^(true|false|yes|no|on|off|null|none|y|n|nan|inf)$/i.test(value);
  return plain ? value : JSON.stringify(value);
}
