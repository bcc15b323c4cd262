// Stacked bars with their words: parts of a step, of a run, of a GPU's memory.

import { h } from "./dom.js";
import { byteUnitFor, digitsFor, fixed, percent, roundedParts, unitFor } from "./units.js";

/** A stacked bar: `parts` is [[words, value]] in seconds or bytes, `low` and `high` are P10 and P90 of the sum,
 * `capacity` is what there is of it. Parts of zero have no line. The colour of a part is that of its place. */
export function stackedBar({ name, parts, low, high, capacity = 0, bytes = false }) {
  const there = parts.map(([words, value], place) => ({ words, value, place })).filter(({ value }) => value > 0);
  const total = there.reduce((sum, { value }) => sum + value, 0);
  const [scale, unit] = bytes ? byteUnitFor(total) : unitFor(total);
  const digits = Math.max(1, digitsFor(total / scale));
  const rounded = roundedParts(there.map(({ value }) => value / scale), digits);
  const numbers = rounded.map((value) => `${fixed(value, digits)} ${unit}`);
  const most = Math.max(total, high, capacity) * 1.02;
  const spoken = there.map(({ words, value }, at) => `${words} ${numbers[at]}, ${percent(value / total)}`).join("; ");
  return h("figure", { class: "stack" },
    h("figcaption", {}, name),
    h("div", { class: "bar", role: "img", "aria-label": `${name}: ${spoken}` }, pieces(there, most), whisker(low, high, most),
      capacity ? h("i", { class: "limit", css: { left: `${((100 * capacity) / most).toFixed(3)}%` } }) : null),
    axis(most / scale, unit),
    h("table", { class: "legend" },
      h("caption", { class: "hidden" }, name),
      h("thead", { class: "hidden" }, h("tr", {}, ["part", unit, "share"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {},
        there.map(({ words, value, place }, at) =>
          h("tr", {}, h("th", { scope: "row" }, h("i", { class: `key part-${place}` }), words), h("td", {}, numbers[at]), h("td", {}, percent(value / total, 1)))),
        h("tr", { class: "sum" }, h("th", { scope: "row" }, "sum"), h("td", {}, `${fixed(rounded.reduce((a, b) => a + b, 0), digits)} ${unit}`), h("td", {}, percent(1, 1))))));
}

/** The coloured pieces of a bar that is `most` long. */
export function pieces(there, most) {
  return there.map(({ words, value, place }) =>
    h("i", { class: `piece part-${place}`, title: words, css: { width: `${((100 * value) / most).toFixed(3)}%` } }));
}

/** The line from P10 to P90. */
export function whisker(low, high, most) {
  const at = (value) => `${((100 * value) / most).toFixed(3)}%`;
  return h("i", { class: "whisker", css: { left: at(low), width: at(Math.max(0, high - low)) } });
}

/** Numbers below a bar whose right end is `most` in the unit. */
export function axis(most, unit) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let at = 0; at <= most * 1.0001; at += step) ticks.push(at);
  return h("div", { class: "axis", "aria-hidden": "true" },
    ticks.map((tick, at) => h("span", { css: { left: `${(100 * tick) / most}%` } }, `${Number(tick.toPrecision(6)).toLocaleString("en-US")}${at === ticks.length - 1 ? ` ${unit}` : ""}`)));
}

/** The words of the colours of several bars: `labels` is [[place, words]]. */
export function legend(labels) {
  return h("ul", { class: "words" }, labels.map(([place, words]) => h("li", {}, h("i", { class: `key part-${place}` }), words)));
}
