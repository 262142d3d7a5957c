// What the page remembers of earlier pictures: the spans of the last ten minutes, and the last requests.

const MOST_REQUESTS = 50;

export class History {
  constructor() {
    this.spans = new Map();
    this.ended = [];
  }

  /** Take what is new in this picture; a full one replaces what was known. */
  take(picture) {
    if (picture.full) {
      this.spans.clear();
      this.ended = [];
    }
    const { points, spans } = picture.rates;
    for (const point of points) this.spans.set(point.n, point);
    const last = points.at(-1).n;
    for (const n of this.spans.keys()) if (n <= last - spans) this.spans.delete(n);
    const known = new Set(this.ended.map((entry) => entry.n));
    const fresh = picture.ended.filter((entry) => !known.has(entry.n));
    this.ended = [...fresh, ...this.ended].sort((a, b) => b.n - a.n).slice(0, MOST_REQUESTS);
  }

  /** Of each of the last `spans` spans the value of `name`, the oldest first; null where there is none. */
  series(name, spans) {
    const last = Math.max(...this.spans.keys());
    return Array.from({ length: spans }, (_, place) => this.spans.get(last - spans + 1 + place)?.[name] ?? null);
  }

  /** The median of what is known of `name`. */
  median(name) {
    const values = [...this.spans.values()].map((span) => span[name]).filter((value) => value !== null);
    values.sort((a, b) => a - b);
    return values.length ? values[Math.floor(values.length / 2)] : null;
  }
}
