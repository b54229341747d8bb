const NS = "http://www.w3.org/2000/svg";
const KNOBS = ["severity", "rho", "shift", "branch"];

class Panel {
  constructor(place, values) {
    Object.assign(this, { place, values });
    values = Object.assign(values, values.grid, { shown: values.labels.length });
    this.leading = Uint8Array.from(atob(values.leading), (c) => c.charCodeAt(0));
    this.depth = this.leading.length / (values.correct.length * values.shown * 2);
    this.stops = { severity: values.severities, rho: values.rhos, shift: values.shifts, branch: values.branches };
    this.sliders = Object.fromEntries(KNOBS.map((name) => [name, place.querySelector(`[data-knob=${name}]`)]));
    this.tiles = [...place.querySelectorAll(".tile-image")];
    place.addEventListener("input", () => this.show());
    new ResizeObserver(() => this.curve()).observe(place.querySelector(".curve"));
    place.querySelector("noscript")?.remove();
    this.show();
  }

  at() {
    const position = Object.fromEntries(KNOBS.map((name) => [name, Number(this.sliders[name].value)]));
    const kind = this.place.querySelector("input[type=radio]:checked");
    return { ...position, corruption: kind ? Number(kind.value) : 0 };
  }

  cell({ branch, corruption, severity, rho, shift }) {
    const v = this.values;
    return (((branch * v.corruptions.length + corruption) * v.severities.length + severity) * v.rhos.length + rho)
      * v.shifts.length + shift;
  }

  accuracy(position) {
    const correct = this.values.correct[this.cell(position)];
    return [correct, ...this.values.bounds[correct]];
  }

  classes(position, image) {
    const start = (this.cell(position) * this.values.shown + image) * this.depth * 2;
    return Array.from({ length: this.depth }, (_, rank) => {
      const [name, cost] = this.leading.slice(start + 2 * rank, start + 2 * rank + 2);
      return [this.values.names[name] ?? "another class", Math.exp(-cost / this.values.unit)];
    });
  }

  show() {
    const position = this.at();
    for (const name of KNOBS) {
      const stop = this.stops[name][position[name]];
      const shown = name === "severity" ? (stop ? `${stop} of 5` : "clean") : String(stop);
      this.place.querySelector(`output[data-of=${name}]`).textContent = shown;
      this.sliders[name].setAttribute("aria-valuetext", shown);
    }
    const [correct, low, high] = this.accuracy(position);
    const share = (value) => `${(100 * value).toFixed(1)} %`;
    this.place.querySelector(".accuracy").textContent = share(correct / this.values.n);
    this.place.querySelector(".interval").textContent =
      `${(100 * low).toFixed(1)}–${(100 * high).toFixed(1)}, ${correct} of ${this.values.n} images`;
    const sheet = `url("data:image/jpeg;base64,${this.values.sheets[position.corruption][position.severity]}")`;
    for (const [image, tile] of this.tiles.entries()) {
      const classes = this.classes(position, image);
      const [name, probability] = classes[0];
      const right = name === this.values.labels[image];
      const picture = tile.querySelector("span");
      picture.style.backgroundImage = sheet;
      picture.style.backgroundSize = `${100 * this.values.shown}% 100%`;
      picture.style.backgroundPosition = `${(100 * image) / Math.max(1, this.values.shown - 1)}% 0`;
      tile.classList.toggle("wrong", !right);
      tile.querySelector(".mark").textContent = right ? "✓" : "✗";
      tile.querySelector(".name").textContent = name;
      tile.querySelector(".probability").textContent = `${(100 * probability).toFixed(0)} %`;
      const others = classes.map(([each, p]) => `${each} ${(100 * p).toFixed(0)} %`).join(", ");
      tile.title = `label: ${this.values.labels[image]}; predicted: ${others}`;
      picture.setAttribute("aria-label", tile.title);
    }
    this.curve();
  }

  curve() {
    const place = this.place.querySelector(".curve");
    const [width, height, left, right, top, bottom] = [place.clientWidth, 270, 40, 14, 26, 40];
    if (!width) return;
    const position = this.at();
    const last = this.values.severities.length - 1;
    const x = (index) => left + ((width - left - right) * index) / Math.max(1, last);
    const y = (fraction) => top + (height - top - bottom) * (1 - fraction);
    const svg = document.createElementNS(NS, "svg");
    const add = (name, attributes, text) => {
      const element = document.createElementNS(NS, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text !== undefined) element.textContent = text;
      svg.append(element);
    };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      add("line", { class: "grid", x1: left, x2: width - right, y1: y(share), y2: y(share) });
      add("text", { class: "end", x: left - 8, y: y(share) + 4 }, 100 * share);
    }
    this.values.severities.forEach((stop, index) =>
      add("text", { class: "middle", x: x(index), y: height - bottom + 18 }, stop || "clean"));
    add("text", { class: "middle", x: (left + width - right) / 2, y: height - 4 }, "corruption severity");
    add("text", { x: 0, y: 12 }, "accuracy (%)");
    const line = (kind, of) => {
      const points = this.values.severities.map((_, severity) =>
        `${x(severity)},${y(this.accuracy({ ...of, severity })[0] / this.values.n)}`);
      add("polyline", { class: kind, points: points.join(" ") });
    };
    line("reference", { ...position, rho: 0, shift: 0, branch: 0 });
    line("current", position);
    const [correct, low, high] = this.accuracy(position);
    const at = x(position.severity);
    add("line", { class: "interval-line", x1: at, x2: at, y1: y(low), y2: y(high) });
    add("circle", { class: "point", cx: at, cy: y(correct / this.values.n), r: 7 });
    place.replaceChildren(svg);
  }
}

const panels = JSON.parse(document.getElementById("panels").textContent);
for (const [index, place] of document.querySelectorAll(".panel").entries()) new Panel(place, panels[index]);
