// Charts by uPlot (vendor/uplot, MIT), which is loaded when the first one is drawn. Every chart stands beside a table
// with its numbers, so it is one image to a screen reader.

import { h, put } from "./dom.js";
import { fixed, percent, unitFor, usd } from "./units.js";

let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    document.head.append(h("link", { rel: "stylesheet", href: "vendor/uplot/uPlot.min.css" }));
    document.head.append(h("script", { src: "vendor/uplot/uPlot.iife.min.js", on: { load: () => resolve(globalThis.uPlot), error: reject } }));
  });
  return loading;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Draws in `root` and again when its width or the colours change; `make()` gives {options, data}. */
async function draw(root, name, height, make) {
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", name);
  const uPlot = await library();
  let chart = null;
  const again = () => {
    if (!root.isConnected && chart) return stop();
    chart?.destroy();
    const { options, data } = make(root.clientWidth);
    chart = new uPlot({ width: Math.max(240, root.clientWidth), height, cursor: { drag: { setScale: false } }, legend: { show: false }, ...options }, data, root);
    return undefined;
  };
  const observer = new ResizeObserver(() => { if (Math.abs((chart?.width ?? 0) - root.clientWidth) > 1 && root.clientWidth) again(); });
  const stop = () => { observer.disconnect(); dark.removeEventListener("change", again); };
  dark.addEventListener("change", again);
  again();
  observer.observe(root);
}

function axis(label, values, size = 56) {
  return {
    label, filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : values(tick))), stroke: colour("--ink"), size,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 },
    font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 22,
  };
}

/** Ends of a logarithmic axis that hold all values with a margin. */
function ends(values) {
  const positive = values.filter((value) => value > 0);
  return [Math.min(...positive) / 1.25, Math.max(...positive) * 1.25];
}

/** 1, 2 and 5 times powers of ten between the ends. */
function ticks([low, high]) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const step of [1, 2, 5]) if (step * power >= low && step * power <= high) found.push(step * power);
  }
  return found.length ? found : [low, high];
}

/** The front of a plan: time against cost, with the choice, the deadline and the budget. */
export function drawFront(root, plan) {
  const options = [...plan.front].filter((option) => option.cost_usd).sort((a, b) => a.finish_s.p50 - b.finish_s.p50);
  if (!options.length) {
    put(root, h("p", { class: "soft" }, "No option has a price, so there is no cost to draw."));
    return;
  }
  const [scale, unit] = unitFor(plan.chosen.finish_s.p50);
  const times = options.map((option) => option.finish_s.p50 / scale);
  const costs = options.map((option) => option.cost_usd.p50);
  const deadline = plan.goal.deadline_hours ? (plan.goal.deadline_hours * 3600) / scale : null;
  const budget = plan.goal.budget_usd;
  const chosen = options.findIndex((option) => JSON.stringify(option.job) === JSON.stringify(plan.chosen.job));
  const x = ends([...times, ...near(deadline, times)]);
  const y = ends([...costs, ...near(budget, costs)]);
  const others = plan.others.map((option) => [option.finish_s / scale, option.cost_usd]).filter(([time, cost]) => time >= x[0] && time <= x[1] && cost >= y[0] && cost <= y[1]);
  const beaten = (chart) => {
    const { ctx } = chart;
    ctx.save();
    ctx.fillStyle = colour("--soft");
    ctx.globalAlpha = 0.35;
    for (const [time, cost] of others) {
      ctx.beginPath();
      ctx.arc(chart.valToPos(time, "x", true), chart.valToPos(cost, "y", true), 2.5 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  };
  const lines = (chart) => {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour("--soft");
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    if (deadline && deadline <= x[1]) {
      const at = chart.valToPos(deadline, "x", true);
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
    }
    if (budget && budget <= y[1]) {
      const at = chart.valToPos(budget, "y", true);
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
    }
    ctx.stroke();
    if (chosen >= 0) {
      ctx.setLineDash([]);
      ctx.strokeStyle = colour("--ink");
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.beginPath();
      ctx.arc(chart.valToPos(times[chosen], "x", true), chart.valToPos(costs[chosen], "y", true), 11 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  };
  draw(root, `Front of ${options.length} options: from ${usd(costs.at(-1))} in ${fixed(times.at(-1), 1)} ${unit} to ${usd(costs[0])} in ${fixed(times[0], 2)} ${unit}`, 320, () => ({
    data: [times, costs],
    options: {
      scales: { x: { time: false, distr: 3, range: () => x }, y: { distr: 3, range: () => y } },
      axes: [
        { ...axis(`time (${unit})`, short, 44), splits: () => ticks(x) },
        { ...axis("cost (US dollars)", (value) => `$${short(value)}`, 64), splits: () => ticks(y) },
      ],
      series: [{}, { stroke: colour("--accent"), width: 2, points: { show: true, size: 9, fill: colour("--accent") } }],
      hooks: { drawAxes: [beaten], draw: [lines] },
      plugins: [hint((at) => `${options[at].gpus} x ${options[at].gpu}, ${options[at].precision}: ${fixed(times[at], 2)} ${unit}, ${usd(costs[at])}`)],
    },
  }));
}

/** A limit that is not far from the values, so that it may stretch the axis. */
function near(limit, values) {
  return limit && limit < 12 * Math.max(...values) ? [limit] : [];
}

function short(value) {
  return value >= 1000 ? value.toLocaleString("en-US") : String(Number(value.toPrecision(3)));
}

/** What the pointer is at, in a box. */
function hint(text) {
  const box = h("div", { class: "hint", hidden: true });
  return {
    hooks: {
      init: [(chart) => chart.over.append(box)],
      setCursor: [(chart) => {
        const at = chart.cursor.idx;
        box.hidden = at === null || at === undefined;
        if (box.hidden) return;
        box.textContent = text(at);
        const left = chart.valToPos(chart.data[0][at], "x");
        box.style.setProperty(left > chart.over.clientWidth / 2 ? "right" : "left", `${Math.max(0, left > chart.over.clientWidth / 2 ? chart.over.clientWidth - left : left) + 12}px`);
        box.style.setProperty(left > chart.over.clientWidth / 2 ? "left" : "right", "auto");
      }],
    },
  };
}

/** Shares over the number of outcomes: `lines` is [{label, values, colour, dash}]. A level is drawn at `level`. */
export function drawShares(root, name, lines, level = null) {
  const numbers = lines[0].values.map((_, at) => at + 1);
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const top = Math.max(...all, level ?? 0) * 1.1 || 1;
  const levels = (chart) => {
    if (level === null) return;
    const { ctx, bbox } = chart;
    const at = chart.valToPos(level, "y", true);
    ctx.save();
    ctx.strokeStyle = colour("--soft");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, at);
    ctx.lineTo(bbox.left + bbox.width, at);
    ctx.stroke();
    ctx.restore();
  };
  draw(root, name, 220, () => ({
    data: [numbers, ...lines.map((line) => line.values)],
    options: {
      scales: { x: { time: false, range: () => [0.5, Math.max(2, numbers.length) + 0.5] }, y: { range: () => [0, level !== null && level > 0.5 ? 1.02 : top] } },
      axes: [
        { ...axis("outcomes", (value) => (Number.isInteger(value) ? String(value) : ""), 44) },
        { ...axis("", (value) => percent(value), 52), labelSize: 0 },
      ],
      series: [{}, ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: 2, dash: line.dash, spanGaps: true, points: { show: numbers.length < 40, size: 6, fill: colour(line.colour) } }))],
      hooks: { draw: [levels] },
      plugins: [hint((at) => `outcome ${at + 1}: ${lines.map((line) => `${line.label} ${line.values[at] === null ? "–" : percent(line.values[at], 1)}`).join(", ")}`)],
    },
  }));
}
