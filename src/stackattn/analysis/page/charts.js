// Helpers that create elements and SVG charts. Text is inserted only as text nodes, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)}%`;

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++)
    found.push(Number((i * step).toPrecision(6)));
  return found;
}

// Each model has the same look in all charts: colour and width distinguish Nd, Sup and others; LSTMs are dashed.
function lookOf(label) {
  const [stroke, width] = label.endsWith("Nd")
    ? ["var(--accent)", 2.6]
    : label.endsWith("Sup")
      ? ["var(--second)", 2]
      : ["var(--third)", 1.5];
  return { stroke, "stroke-width": width, "stroke-dasharray": label.startsWith("LSTM") ? "6 4" : "none" };
}

// Labels at the ends of lines, moved apart where they would overlap. ends: [{x, y, label, colour}, ...]
function endLabels(svg, ends, lowest) {
  const height = 13;
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => {
    if (i) end.y = Math.max(end.y, ends[i - 1].y + height);
  });
  ends.reverse().forEach((end, i) => {
    end.y = Math.min(end.y, i ? ends[i - 1].y - height : lowest);
  });
  for (const { x, y, label, colour } of ends)
    svg.append(draw("text", { x: x + 6, y: y + 4, style: `fill: ${colour}` }, label));
}

// series: [{name, label, look, points: [[x, y], ...], reference}]; a look is a set of SVG attributes, and a label is a
// longer name. In a chart of up to 8 lines, those of models are labelled at their ends. Reference lines, and all
// lines of a larger chart, are listed in a legend.
function lineChart(title, series, { xName, yName, zero = true, marker = null }) {
  const named = series.length <= 8 ? series.filter((one) => !one.reference) : [];
  const longest = Math.max(0, ...named.map((one) => one.name.length));
  // A chart that is wider than the page would be scaled down, including its text.
  const width = Math.min(480, document.querySelector("main").clientWidth),
    height = 270,
    left = 54,
    right = 12 + 8 * longest,
    top = 10,
    bottom = 40;
  const points = series.flatMap((one) => one.points);
  const xs = points.map((p) => p[0]),
    ys = points.map((p) => p[1]);
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (zero) y0 = Math.min(0, y0);
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  const room = (y1 - y0 || 1) * 0.06;
  y1 += room;
  if (y0 !== 0) y0 -= room;
  const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = draw("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width: "100%",
    role: "img",
    "aria-label": `${title}: ${yName} by ${xName}`,
  });
  for (const value of ticks(y0, y1, 5)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { class: "quietly", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  for (const value of ticks(x0, x1, 7).filter(Number.isInteger)) {
    svg.append(
      draw("text", { class: "quietly", x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, String(value)),
    );
  }
  svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(
    draw("text", { class: "quietly", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xName),
  );
  svg.append(
    draw(
      "text",
      {
        class: "quietly",
        transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`,
        "text-anchor": "middle",
      },
      yName,
    ),
  );
  if (marker !== null && marker > x0 && marker < x1) {
    svg.append(
      draw("line", {
        class: "axis",
        "stroke-dasharray": "2 3",
        x1: x(marker),
        x2: x(marker),
        y1: top,
        y2: height - bottom,
      }),
    );
  }
  for (const { label, look, points: of } of series) {
    if (of.length === 1) {
      svg.append(
        draw("circle", { cx: x(of[0][0]), cy: y(of[0][1]), r: 3.5, fill: look.stroke }, draw("title", {}, label)),
      );
      continue;
    }
    const path = of.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    svg.append(draw("path", { d: path, fill: "none", "stroke-linejoin": "round", ...look }, draw("title", {}, label)));
  }
  endLabels(
    svg,
    named.map((one) => {
      const [a, b] = one.points[one.points.length - 1];
      return { x: x(a), y: y(b), label: one.name, colour: one.look.stroke };
    }),
    height - bottom - 6,
  );
  const legend = make("ul", { class: "legend" });
  const shown = new Map(series.filter((one) => !named.includes(one)).map((one) => [one.name, one.look]));
  for (const [label, look] of shown) {
    const sample = draw(
      "svg",
      { width: 26, height: 10, "aria-hidden": "true" },
      draw("line", { x1: 0, x2: 26, y1: 5, y2: 5, ...look }),
    );
    legend.append(make("li", {}, sample, label));
  }
  return make("figure", {}, make("h3", {}, title), svg, legend);
}
