// How values are written.

const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});
const count = new Intl.NumberFormat("en");

export const number = (value) => (value === null || value === undefined ? "?" : count.format(value));
export const plural = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const timeOfDay = (instant) => clock.format(new Date(instant));
export const dateTime = (instant) => day.format(new Date(instant));

/// Milliseconds as a person says them.
export function duration(ms) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return two(minutes, "min", seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return two(hours, "h", minutes % 60, "min");
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

const two = (large, unit, small, part) =>
  small === 0 ? `${large} ${unit}` : `${large} ${unit} ${String(small).padStart(2, "0")} ${part}`;

/// How long ago, by this machine's clock, which may be wrong by a little.
export const since = (instant) => duration(Math.max(0, Date.now() - new Date(instant).getTime()));

export const WHOLE = "the whole namespace";
/// A path in one line. Segments may contain anything, a slash too, so another sign stands between them.
export const pathText = (path) => (path.length === 0 ? WHOLE : path.join(" › "));
export const pathKey = (path) => JSON.stringify(path);

/// Who holds or waits, in one line.
export const ownerText = (owner) => (owner.holder ? `${owner.process_id} · ${owner.holder}` : owner.process_id);
export const ownerKey = (owner) =>
  JSON.stringify([owner.session_id, owner.session_id ? owner.holder : owner.process_id]);
