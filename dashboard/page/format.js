// Numbers, times and sizes as text. Pure.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NOTHING = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? GROUPED.format(value) : NOTHING;
}

// 1,234 stays; 1,234,567 becomes 1.23 M: for figures that are read from afar.
export function short(value) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  for (const [unit, at] of [["G", 1e9], ["M", 1e6], ["k", 1e5]]) {
    if (size >= at) return `${significant(value / (unit === "k" ? 1e3 : at), 3)} ${unit}`;
  }
  return size >= 100 || Number.isInteger(value) ? count(value) : significant(value, 3);
}

// What is measured may be NaN or infinite, and is told as that.
export function significant(value, digits = 4) {
  if (typeof value !== "number") return NOTHING;
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 2);
  const after = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return size >= 1000 ? count(value) : value.toFixed(Math.min(after, 8));
}

export function percent(part, whole) {
  if (!isNumber(part) || !isNumber(whole) || whole <= 0) return NOTHING;
  const share = (100 * part) / whole;
  if (share >= 100) return "100 %";
  // What is not all is not shown as all, and what is something not as nothing.
  if (share > 99.9) return "99.9 %";
  if (share > 0 && share < 0.1) return "< 0.1 %";
  return `${share.toFixed(1)} %`;
}

// 0:07, 12:34, 1:02:33: a moment since the job's start.
export function clock(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const rest = `${hours ? two(minutes) : minutes}:${two(whole % 60)}`;
  return hours ? `${hours}:${rest}` : rest;
}

// 0.3 s, 42 s, 3 min, 2 h: how long something lasts, in words.
export function lasting(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  for (const [unit, at] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= at) return `${significant(value / at, 3)} ${unit}`;
  }
  return `${count(value)} B`;
}

export function plural(number, word, many = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : many}`;
}

// Steps of an axis of time that people count in, so that at most `most` lie in `span` seconds.
export function timeStep(span, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  return steps.find((step) => span / step <= most) || Math.ceil(span / most / 86400) * 86400;
}

export function title(name) {
  const words = String(name).replace(/_s$/, "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// Characters that would do something instead of standing there: control characters, what changes the
// direction of writing, what is no character. Lines and tabs stay. As common/plain.py tells them.
const ACTING = /[^\P{C}\n\t]|[\p{Zl}\p{Zp}]/gu;

export function visible(text) {
  return String(text).replace(ACTING, (one) => {
    const code = one.codePointAt(0);
    const [sign, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${sign}${code.toString(16).padStart(digits, "0")}`;
  });
}

// What a job's message says, without the command that goes on: that is among what is kept, whole.
export function headline(text) {
  const short = String(text).replace(/[;:,]? (go on with: )?`?edl train --resume [^]*$/, "");
  return short === text || /[.!?]$/.test(short) ? short : `${short}.`;
}

// How long a job lasts by the axis of time, and how much of that since it went on, where it did.
export function lasted(since, ran) {
  if (!isNumber(since)) return [clock(ran), ""];
  return [clock(since), isNumber(ran) && since - ran >= 1 ? `${clock(ran)} since it went on` : ""];
}
