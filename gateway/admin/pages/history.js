// Keeps what earlier snapshots said: the spans of the last ten minutes, and the last requests that ended.

const MOST_REQUESTS = 50;

export class History {
  constructor() {
    this.spans = new Map();
    this.ended = [];
  }

  /** Add the changes of this snapshot. A full snapshot replaces everything. */
  take(snapshot) {
    if (snapshot.full) {
      this.spans.clear();
      this.ended = [];
    }
    const { points, spans } = snapshot.rates;
    for (const point of points) this.spans.set(point.n, point);
    const last = points.at(-1).n;
    for (const n of this.spans.keys()) if (n <= last - spans) this.spans.delete(n);
    const known = new Set(this.ended.map((entry) => entry.n));
    const fresh = snapshot.ended.filter((entry) => !known.has(entry.n));
    this.ended = [...fresh, ...this.ended].sort((a, b) => b.n - a.n).slice(0, MOST_REQUESTS);
  }

  /** Return the value of `name` in each of the last `spans` spans, the oldest first; null where there is none. */
  series(name, spans) {
    const last = Math.max(...this.spans.keys());
    return Array.from({ length: spans }, (_, place) => this.spans.get(last - spans + 1 + place)?.[name] ?? null);
  }

  /** Return the median of all values of `name`, or null if there are none. */
  median(name) {
    const values = [...this.spans.values()].map((span) => span[name]).filter((value) => value !== null);
    values.sort((a, b) => a - b);
    return values.length ? values[Math.floor(values.length / 2)] : null;
  }
}
