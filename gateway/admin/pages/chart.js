// A small SVG line chart over time. Counts are drawn as an area, measurements as dots that lines connect.

import { make, say, set } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;

function shape(tag, name) {
  const element = document.createElementNS(SVG, tag);
  element.setAttribute("class", name);
  return element;
}

export class Chart {
  /** `format` turns a value into text. `area` fills the space below the line and draws missing values as zero. */
  constructor(parent, { title, format, area = false }) {
    Object.assign(this, { title, format, area, values: [], spanS: 1 });
    this.svg = shape("svg", "");
    set(this.svg, "viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    set(this.svg, "preserveAspectRatio", "none");
    set(this.svg, "role", "img");
    for (const y of [0, HEIGHT / 2, HEIGHT]) {
      const line = shape("line", "grid");
      for (const [name, value] of Object.entries({ x1: 0, x2: WIDTH, y1: y, y2: y })) set(line, name, String(value));
      this.svg.append(line);
    }
    this.fill = shape("path", "area");
    this.second = shape("path", "second");
    this.line = shape("path", "line");
    this.dots = shape("path", "dots");
    this.cursor = shape("line", "cursor");
    this.cursor.style.display = "none";
    this.svg.append(this.fill, this.second, this.line, this.dots, this.cursor);
    this.top = make("span", { class: "top-label" });
    this.said = make("span", { class: "said" });
    const times = make("div", { class: "times", "aria-hidden": "true" }, ...["10 min ago", "5 min", "now"].map((t) => make("span", {}, t)));
    parent.append(this.svg, this.top, this.said, times);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.unpoint());
  }

  /** `values` and `others` cover the same times, the oldest first. They hold null where nothing was measured. */
  draw(values, spanS, others = []) {
    this.values = values;
    this.spanS = spanS;
    const highest = nice(Math.max(...values, ...others, 0));
    const x = (place) => (place / (values.length - 1)) * WIDTH;
    const y = (value) => HEIGHT - (value / highest) * (HEIGHT - 2);
    set(this.line, "d", path(values, x, y, this.area));
    set(this.second, "d", path(others, x, y, false));
    if (!this.area) set(this.dots, "d", dots(values, x, y));
    if (this.area) set(this.fill, "d", `${path(values, x, y, true)}L${WIDTH},${HEIGHT}L0,${HEIGHT}Z`);
    say(this.top, highest ? this.format(highest) : "");
    const known = values.filter((value) => value !== null);
    const now = known.length ? this.format(known.at(-1)) : "no value";
    set(this.svg, "aria-label", `${this.title}, last ten minutes: now ${now}, highest ${this.format(Math.max(...known, 0))}`);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const place = Math.round(((event.clientX - box.left) / box.width) * (this.values.length - 1));
    const value = this.values[place];
    const at = (place / (this.values.length - 1)) * WIDTH;
    for (const [name, where] of Object.entries({ x1: at, x2: at, y1: 0, y2: HEIGHT })) set(this.cursor, name, String(where));
    this.cursor.style.display = "";
    const ago = Math.round(((this.values.length - 1 - place) * this.spanS) / 6) / 10;
    say(this.said, value === null || value === undefined ? "" : `${this.format(value)}, ${ago} min ago`);
  }

  unpoint() {
    this.cursor.style.display = "none";
    say(this.said, "");
  }
}

function path(values, x, y, missingIsZero) {
  let drawn = "";
  let gap = true;
  values.forEach((value, place) => {
    if (value === null && !missingIsZero) return;
    drawn += `${gap ? "M" : "L"}${x(place).toFixed(1)},${y(value ?? 0).toFixed(1)}`;
    gap = false;
  });
  return drawn;
}

/** Return a path with a dot on each value, because a value without neighbours makes no line. */
function dots(values, x, y) {
  const marks = values.map((value, place) => (value === null ? "" : `M${x(place).toFixed(1)},${y(value).toFixed(1)}h0`));
  return marks.join("");
}

/** Return the next round number above `value`, so that the scale does not change with every value. */
function nice(value) {
  if (!value) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((top) => top >= value);
}
