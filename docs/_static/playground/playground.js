// The page around the stacks: input, sliders and figures.

const SYMBOLS = ["⊥", "(", "["];
const ACTIONS = {
  "(": ["push", 1],
  "[": ["push", 2],
  "+": ["push", 1],
  ")": ["pop", 1],
  "]": ["pop", 2],
  "-": ["pop", null],
  ".": ["keep", null],
};
const LONGEST = 16;

// Repeatable random numbers (mulberry32), so that moving a slider does not change the pattern of the noise.
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}

function normal(random) {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

const playground = {
  element: (name) => document.getElementById(`playground-${name}`),

  // Computes everything that the page shows from the input and the sliders.
  compute() {
    const value = (name) => Number(this.element(name).value);
    const text = [...this.element("text").value].filter((c) => c in ACTIONS).slice(0, LONGEST);
    const random = generator(value("seed"));
    const noise = () => value("noise") * normal(random);
    const actions = text.map((c) => {
      const right = ACTIONS[c][0];
      const logits = ["push", "keep", "pop"].map((name) => noise() + (name === right ? value(name) : 0));
      const total = logits.reduce((sum, x) => sum + Math.exp(x), 0);
      return logits.map((x) => Math.exp(x) / total);
    });
    const all = SYMBOLS.map((_, i) => i);
    const transitions = text.map((c) => {
      const [kind, symbol] = ACTIONS[c];
      const push = all.map(() => all.map((y) => noise() + (kind === "push" && y === symbol ? value("push") : 0)));
      const replace = all.map((x) => all.map((y) => noise() + (kind === "keep" && x === y ? value("keep") : 0)));
      const popped = (x) => kind === "pop" && (symbol === null ? x > 0 : x === symbol);
      const pop = all.map((x) => noise() + (popped(x) ? value("pop") : 0));
      return { push, replace, pop };
    });
    const levels = superpositionLevels(actions);
    const weights = nondeterministicWeights(transitions);
    const runs = text.length ? [findRun(transitions, BEST)] : [];
    const dice = sampler(generator(value("seed") + 1));
    while (text.length && runs.length < 4) runs.push(findRun(transitions, dice));
    return { text, actions, transitions, levels, weights, runs };
  },

  update() {
    this.shown = this.compute();
    const slider = this.element("step");
    slider.max = Math.max(0, this.shown.text.length - 1);
    for (const name of ["noise", "push", "keep", "pop"]) {
      this.element(`${name}-value`).textContent = Number(this.element(name).value).toFixed(1);
    }
    this.draw();
  },

  draw() {
    const { text, levels, weights, runs } = this.shown;
    const step = Math.min(Number(this.element("step").value), text.length - 1);
    this.element("tape").replaceChildren(
      ...text.map((c, t) => {
        const cell = document.createElement("button");
        cell.textContent = c;
        cell.className = t === step ? "now" : "";
        cell.onclick = () => this.go(t);
        return cell;
      }),
    );
    const summed = weights.map((row) => row.map((part) => part.reduce((a, b) => a + b, 0)));
    this.map(
      "superposition",
      levels.map((rows) => rows[0]),
      text,
      step,
    );
    this.map("nondeterministic", summed, ["⊥", ...text], step);
    const lines = (levels[step] ?? []).map((row, d) => this.mixture(row, text, d));
    this.list(
      "stack",
      lines.filter((line, d) => d === 0 || !line.endsWith(": 100 % empty")),
    );
    this.list(
      "runs",
      runs.map((run, i) => {
        const stack = stacksOf(run)[step].map(([pushed, symbol]) => SYMBOLS[symbol] + (pushed < 0 ? "" : pushed));
        const { kind, symbol } = run[step];
        const operation = symbol === undefined ? kind : `${kind} ${SYMBOLS[symbol]}`;
        return `${i ? `sample ${i}` : "best run"}: ${operation.padEnd(10)} stack ${stack.join(" ")}`;
      }),
    );
  },

  go(step) {
    this.element("step").value = step;
    this.draw();
  },

  mixture(row, text, depth) {
    const named = row.map((share, i) => [share, `${text[i]}${i}`]).sort(([a], [b]) => b - a);
    const shares = [...named, [1 - row.reduce((a, b) => a + b, 0), "empty"]];
    const parts = shares
      .filter(([share]) => share >= 0.005)
      .map(([share, name]) => `${(100 * share).toFixed(0)} % ${name}`);
    return `${depth ? `depth ${depth}` : "top    "}: ${parts.join(", ")}`;
  },

  list(name, lines) {
    this.element(name).textContent = lines.join("\n");
  },

  // An attention map: one row per step, one column per element.
  map(name, rows, columns, step) {
    const size = 22;
    const svg = (tag, attributes, text = "") => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      node.textContent = text;
      return node;
    };
    const width = (columns.length + 1) * size;
    const figure = svg("svg", { viewBox: `0 0 ${width} ${(rows.length + 1) * size}`, width, role: "img" });
    figure.setAttribute("aria-label", `attention map of the ${name} stack`);
    columns.forEach((c, i) => figure.append(svg("text", { x: (i + 1.5) * size, y: size * 0.7, class: "label" }, c)));
    rows.forEach((row, t) => {
      const label = t === step ? "label now" : "label";
      figure.append(svg("text", { x: size / 2, y: (t + 1.7) * size, class: label }, String(t)));
      columns.forEach((_, i) => {
        const share = row[i] ?? 0;
        const place = { x: (i + 1) * size, y: (t + 1) * size, width: size - 1, height: size - 1 };
        const cell = svg("rect", { ...place, class: "cell", "fill-opacity": Math.sqrt(share) });
        cell.append(svg("title", {}, `step ${t}: ${columns[i]} ${share.toFixed(3)}`));
        cell.addEventListener("click", () => this.go(t));
        figure.append(cell);
      });
    });
    this.element(name).replaceChildren(figure);
  },

  start() {
    for (const name of ["text", "noise", "push", "keep", "pop", "seed"]) {
      this.element(name).addEventListener("input", () => this.update());
    }
    this.element("step").addEventListener("input", () => this.draw());
    this.element("again").addEventListener("click", () => {
      this.element("seed").value = Number(this.element("seed").value) + 1;
      this.update();
    });
    this.update();
    this.go(Math.max(0, this.shown.text.length - 1));
  },
};
