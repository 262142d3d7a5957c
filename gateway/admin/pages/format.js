// Formats numbers and durations for people.

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return seconds(ms / 1000);
}

export function seconds(s) {
  const whole = Math.floor(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

export function rate(number) {
  return number < 10 ? number.toFixed(1) : count(number);
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
