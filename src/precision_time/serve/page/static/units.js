// Numbers as people read them, as units.py writes them: 105 ms, 3.40 h, 12.2 GiB, 13,200.

const SECONDS = [[1e-6, "us"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "days"]];
const BYTES = [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]];

/** The unit in which a duration reads well: [seconds in it, its name]. */
export function unitFor(seconds) {
  const fitting = SECONDS.filter(([scale]) => Math.abs(seconds) >= (scale >= 60 ? 2 : 1) * scale);
  return fitting.at(-1) ?? SECONDS[0];
}

export function byteUnitFor(size) {
  return BYTES.filter(([scale]) => Math.abs(size) >= scale).at(-1) ?? BYTES[0];
}

/** Decimals that leave about three significant digits. */
export function digitsFor(value) {
  return Math.abs(value) >= 1e-3 ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))) : 0;
}

export function fixed(value, digits) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function humanSeconds(seconds) {
  const [scale, unit] = unitFor(seconds);
  return `${fixed(seconds / scale, digitsFor(seconds / scale))} ${unit}`;
}

export function humanBytes(size) {
  const [scale, unit] = byteUnitFor(size);
  return `${fixed(size / scale, scale > 1 ? digitsFor(size / scale) : 0)} ${unit}`;
}

export function humanCount(value) {
  return fixed(value, digitsFor(value));
}

export function usd(value) {
  return `$${fixed(value, value < 100 ? 2 : 0)}`;
}

export function percent(share, digits = 0) {
  return `${fixed(100 * share, digits)}\u00a0%`;
}

/** "+8 %" */
export function change(ratio) {
  return `${ratio >= 1 ? "+" : "−"}${percent(Math.abs(ratio - 1), 1)}`;
}

/** P50 with its unit, and P10 and P90 in the same unit: {middle: "126 ms", ends: "102 to 155 ms"}. */
export function secondsInterval(interval) {
  const [scale, unit] = unitFor(interval.p50);
  const digits = digitsFor(interval.p50 / scale);
  const [low, middle, high] = [interval.p10, interval.p50, interval.p90].map((each) => fixed(each / scale, digits));
  return { middle: `${middle} ${unit}`, ends: `${low} to ${high} ${unit}` };
}

/** The same of sizes. */
export function bytesInterval({ p10, p50, p90 }) {
  const [scale, unit] = byteUnitFor(p50);
  const digits = scale > 1 ? digitsFor(p50 / scale) : 0;
  const [low, middle, high] = [p10, p50, p90].map((each) => fixed(each / scale, digits));
  return { middle: `${middle} ${unit}`, ends: `${low} to ${high} ${unit}` };
}

/** And of joules, in kilowatt-hours. */
export function energyInterval({ p10, p50, p90 }) {
  const digits = digitsFor(p50 / 3.6e6);
  const [low, middle, high] = [p10, p50, p90].map((each) => fixed(each / 3.6e6, digits));
  return { middle: `${middle} kWh`, ends: `${low} to ${high} kWh` };
}

export function interval(of, write) {
  return { middle: write(of.p50), ends: `${write(of.p10)} to ${write(of.p90)}` };
}

/** Parts rounded so that they sum to their rounded total, as units.rounded_parts does. */
export function roundedParts(parts, digits) {
  const scale = 10 ** digits;
  const floors = parts.map((part) => Math.floor(part * scale));
  const total = Math.round(parts.reduce((sum, part) => sum + part, 0) * scale);
  const missing = total - floors.reduce((sum, part) => sum + part, 0);
  const order = parts.map((_, at) => at).sort((a, b) => floors[a] - parts[a] * scale - (floors[b] - parts[b] * scale));
  for (const at of order.slice(0, missing)) floors[at] += 1;
  return floors.map((value) => value / scale);
}

/** "25 Nov 2026, 21:40" of seconds since 1970, in the reader's time zone. */
export function moment(seconds) {
  return new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
