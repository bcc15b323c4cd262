// The view of errors: of this cluster's predictions over time, outcomes that are far off, and the accuracy board.

import { ask } from "./api.js";
import { drawShares } from "./charts.js";
import { h, put, speak, table, wide } from "./dom.js";
import { title } from "./job.js";
import { fixed, humanSeconds, moment, percent } from "./units.js";

const WINDOW = 30;
/** Outcomes over which error and coverage are averaged. */
const TARGET = 0.8;
/** Share of outcomes that P10 to P90 is meant to hold. */

export class AccuracyView {
  constructor(root, page) {
    this.page = page;
    this.cluster = section("cluster", "Loading ...");
    this.anomalies = section("anomalies", "");
    this.board = section("board", "");
    root.append(this.cluster, this.anomalies, this.board);
  }

  async update() {
    const query = new URLSearchParams({ cluster: this.page.cluster() });
    const said = await Promise.all([
      this.part(this.cluster, `v1/accuracy?${query}`, showAccuracy),
      this.part(this.anomalies, `v1/anomalies?${query}`, showAnomalies),
      this.part(this.board, "v1/board", showBoard),
    ]);
    speak(said.filter(Boolean).join(" "));
  }

  /** Shows what `path` answers; what is said of it. */
  async part(root, path, show) {
    try {
      return show(root, await ask(path), this.page);
    } catch (problem) {
      put(root, h("p", { class: "note wrong", role: "alert" }, problem.message));
      return "";
    }
  }
}

function section(name, text) {
  return h("section", { class: name }, h("p", { class: "soft" }, text));
}

/** Means over the last outcomes at every outcome: of |predicted / measured - 1|, and of lying inside. */
function running(values) {
  return values.map((_, at) => {
    const last = values.slice(Math.max(0, at + 1 - WINDOW), at + 1);
    return last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

function showAccuracy(root, found, page) {
  const points = found.points ?? [];
  const heading = h("h3", {}, `Predictions of cluster ${page.cluster()}`);
  if (!points.length) {
    put(root, heading, h("p", {}, "No outcome is recorded yet. Each one that is recorded, here under Jobs, by a callback or by ", h("code", {}, "precision-time record"), ", is judged against its prediction and corrects those that follow."));
    return `Cluster ${page.cluster()} has no outcomes.`;
  }
  const errors = running(points.map((point) => Math.abs(point.error)));
  const before = running(points.map((point) => Math.abs(point.error_uncorrected ?? point.error)));
  const inside = running(points.map((point) => (point.inside ? 1 : 0)));
  const [errorChart, insideChart] = [h("div", { class: "chart" }), h("div", { class: "chart" })];
  const last = Math.min(WINDOW, points.length);
  put(root, heading,
    h("div", { class: "cards" },
      card("Outcomes", fixed(points.length, 0)),
      card("Mean error", percent(errors.at(-1), 1), `of the last ${last}; without correction ${percent(before.at(-1), 1)}`),
      card("Inside P10 to P90", percent(inside.at(-1)), `of the last ${last}; meant: ${percent(TARGET)}`)),
    h("div", { class: "pair" },
      h("figure", {}, h("figcaption", {}, `Mean error of the step over the last ${WINDOW} outcomes: `, key("accent", "corrected"), " ", key("other", "without correction")), errorChart),
      h("figure", {}, h("figcaption", {}, `Share inside P10 to P90 over the last ${WINDOW} outcomes; dashed: ${percent(TARGET)}`), insideChart)),
    h("details", {}, h("summary", {}, "As a table"), wide("Outcomes and errors", outcomes(points))));
  drawShares(errorChart, `Mean error: ${percent(errors.at(-1), 1)} after ${points.length} outcomes`, [
    { label: "without correction", values: before, colour: "--other", dash: [5, 4] }, { label: "corrected", values: errors, colour: "--accent" }]);
  drawShares(insideChart, `Share inside P10 to P90: ${percent(inside.at(-1))} after ${points.length} outcomes`, [{ label: "inside", values: inside, colour: "--accent" }], TARGET);
  return `Cluster ${page.cluster()}: ${points.length} outcomes, mean error ${percent(errors.at(-1), 1)}, ${percent(inside.at(-1))} inside P10 to P90.`;
}

function key(name, words) {
  return h("span", { class: "of-line" }, h("i", { class: `line ${name}` }), words);
}

function card(name, value, further = null) {
  return h("div", { class: "card" }, h("h3", {}, name), h("p", { class: "big" }, value), further ? h("p", { class: "soft" }, further) : null);
}

function outcomes(points) {
  const heads = [{ text: "job", left: true }, { text: "recorded on", left: true }, "measured", "error", "without correction", { text: "inside", left: true }];
  return table("Outcomes and errors", heads, [...points].reverse().map((point) => [
    point.job ? title(point.job) : point.prediction ?? "", point.at ? moment(point.at) : "", point.measured_s ? humanSeconds(point.measured_s) : "",
    signed(point.error), point.error_uncorrected === undefined ? "" : signed(point.error_uncorrected), point.inside ? "yes" : "no",
  ]));
}

function signed(error) {
  return `${error >= 0 ? "+" : "−"}${percent(Math.abs(error), 1)}`;
}

function showAnomalies(root, found, page) {
  const list = Array.isArray(found) ? found : found.anomalies ?? [];
  put(root, h("h3", {}, "Anomalies"),
    list.length
      ? h("ul", { class: "far-off" }, list.map((each) => anomaly(each, page)))
      : h("p", { class: "soft" }, "No outcome is far from those of the same kind."));
  return list.length === 1 ? "1 anomaly." : `${list.length} anomalies.`;
}

/** What is far off, the further evidence, and the job. */
function anomaly({ sentence, evidence = [], at, prediction }, page) {
  const others = evidence.slice(1).join("; ");
  return h("li", {}, h("strong", {}, sentence), others ? ` Also: ${others}.` : "", " ",
    h("a", { href: page.jobLink(prediction) }, at ? `Recorded on ${moment(at)}` : "The job"));
}

function showBoard(root, board) {
  const tables = board.tables ?? [];
  put(root, h("h3", {}, "Accuracy board"),
    h("p", { class: "soft" }, board.note ?? "Published training steps, each predicted by parameters that were fitted without its group. No cluster's outcomes take part."),
    h("div", { class: "tables" }, tables.map((each) => h("div", {}, h("h4", {}, each.title), wide(each.title, boardTable(each))))));
}

/** "10.0%" -> "10.0 %", as everywhere on the page. */
function spaced(text) {
  return text.replace(/^([\d.]+)%$/, "$1 %");
}

/** A table of the board, with a bar for each mean error. */
function boardTable({ title: name, heads, rows }) {
  const at = heads.indexOf("mean error");
  const most = Math.max(...rows.map((row) => parseFloat(row[at]) || 0));
  const shown = heads.map((head, place) => (place === 0 ? { text: head, left: true } : head));
  const bar = (text) => h("span", { class: "with-bar" }, h("i", { class: "small-bar", css: { width: `${(3.5 * (parseFloat(text) || 0)) / most}em` } }), text);
  return table(name, shown, rows.map((row) => row.map((cell, place) => (place === at ? bar(spaced(cell)) : spaced(cell)))));
}
