// How long ago something was, in as few letters as a list has room for.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const format = (options) => new Intl.DateTimeFormat("en", options);
const WEEKDAY = format({ weekday: "short" });
const MONTH = format({ month: "short", day: "numeric" });
const YEAR = format({ month: "short", year: "numeric" });
const FULL = format({ dateStyle: "long", timeStyle: "short" });

const isDate = (time) => Math.abs(time) <= 8.64e15; // what the store has may be anything

/** “now”, “5 min”, “3 h”, “Mon”, “Nov 3” or “Nov 2025”; `time` and `now` are in milliseconds. */
export function ago(time, now = Date.now()) {
  const past = now - time;
  if (past < MINUTE) return "now";
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (!isDate(time)) return "";
  if (past < 6 * DAY) return WEEKDAY.format(time);
  const sameYear = new Date(time).getFullYear() === new Date(now).getFullYear();
  return (sameYear ? MONTH : YEAR).format(time);
}

/** The date and the time of day. */
export const fullDate = (time) => (isDate(time) ? FULL.format(time) : "");
