// The state of the page in the address: #/compare?model=resnet50&gpus=8&run.epochs=90&compare.precisions=fp32,tf32

import { entries, isObject, set, typed, written } from "./job.js";

export const VIEWS = ["predict", "compare", "plan", "jobs", "accuracy"];
const OPTIONS = ["compare", "plan", "jobs"];

/** {view, cluster, job, options}: `options` has one mapping of texts for each view with options. */
export function read(hash) {
  const found = /^#\/(\w+)(?:\?(.*))?$/.exec(hash);
  const state = { view: "predict", cluster: "default", job: {}, options: Object.fromEntries(OPTIONS.map((o) => [o, {}])) };
  if (!found) return state;
  if (VIEWS.includes(found[1])) state.view = found[1];
  for (const [key, text] of new URLSearchParams(found[2] ?? "")) {
    const [first, ...rest] = key.split(".");
    if (key === "cluster") state.cluster = text;
    else if (OPTIONS.includes(first) && rest.length) state.options[first][rest.join(".")] = text;
    else if (!["__proto__", "constructor"].includes(first)) state.job = set(state.job, key, typed(key, text));
  }
  return state;
}

/** The address of a state: `read` of it gives the state back. */
export function write(state) {
  const query = new URLSearchParams();
  for (const [path, value] of entries(state.job)) {
    if (value !== undefined && !(isObject(value) && !Object.keys(value).length)) query.append(path, written(value));
  }
  if (state.cluster && state.cluster !== "default") query.append("cluster", state.cluster);
  for (const [key, text] of Object.entries(state.options[state.view] ?? {})) {
    if (text) query.append(`${state.view}.${key}`, text);
  }
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
  return `#/${state.view}${text ? `?${text}` : ""}`;
}
