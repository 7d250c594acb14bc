// Figures of one string. `timeline` and `attentionMap` each return a function that moves the figure's marker to a step.
// Labels are separate SVG elements, so that they stay in place when a figure is scrolled.

const LETTER = 7.3; // width of a character at font size 12

function sheet(kind, width, height, attributes = {}) {
  return draw("svg", { class: kind, width, height, viewBox: `0 0 ${width} ${height}`, ...attributes });
}

const short = (token) => (token.length > 10 ? `${token.slice(0, 9)}…` : token);
const roomFor = (tokens) => Math.max(...tokens.map((token) => short(token).length)) * LETTER;

// Column headings: horizontal where they fit, otherwise rotated.
const fits = (token, cell) => token.length * LETTER <= cell + 1;

function headHeight(tokens, cell) {
  const turned = tokens.filter((token) => !fits(token, cell));
  return turned.length ? Math.ceil(roomFor(turned)) + 8 : 18;
}

function heads(svg, tokens, cell, height) {
  tokens.forEach((token, i) => {
    const x = (i + 0.5) * cell;
    const place = fits(token, cell)
      ? { x, y: height - 5, "text-anchor": "middle" }
      : { transform: `translate(${x + 4} ${height - 4}) rotate(-90)` };
    svg.append(draw("text", { class: "symbol", ...place }, short(token), draw("title", {}, token)));
  });
}

function timeline(box, text, trace, go) {
  const n = text.tokens.length,
    cell = Math.max(18, Math.min(30, Math.floor(1000 / n)));
  const left = 66,
    heightRow = 74,
    lossRow = 48,
    gap = 24;
  const actionsTop = headHeight(text.tokens, cell),
    actionsBottom = actionsTop + 3 * cell;
  const heightsTop = actionsBottom + gap,
    lossTop = heightsTop + heightRow + gap;
  const width = n * cell + 4,
    height = (text.loss.length ? lossTop + lossRow : heightsTop + heightRow) + 6;
  const labels = sheet("stays-left", left, height, { "aria-hidden": "true" });
  const plot = sheet("plot clickable", width, height, {
    role: "img",
    "aria-label": text.loss.length
      ? "Actions, expected height and loss at each step"
      : "Actions and expected height at each step",
  });
  const mark = draw("rect", {
    y: 2,
    width: cell,
    height: height - 4,
    fill: "var(--accent)",
    "fill-opacity": 0.16,
    rx: 3,
  });
  plot.append(mark);
  heads(plot, text.tokens, cell, actionsTop);
  text.tokens.forEach((token, t) =>
    (trace.actions[t] ?? []).forEach((weight, i) => {
      plot.append(
        draw(
          "rect",
          {
            x: t * cell + 0.5,
            y: actionsTop + i * cell + 0.5,
            width: cell - 1,
            height: cell - 1,
            fill: "var(--ink)",
            "fill-opacity": weight / 1000,
            stroke: "var(--line)",
          },
          draw("title", {}, `${token}: ${trace.actionNames[i]} ${(weight / 1000).toFixed(2)}`),
        ),
      );
    }),
  );
  const label = (name, y, place = { x: left - 8, "text-anchor": "end" }) =>
    labels.append(draw("text", { class: "quietly", y, ...place }, name));
  trace.actionNames.forEach((name, i) => label(name, actionsTop + (i + 0.5) * cell + 4));

  const axis = (top, size, most, name, digits) => {
    label(name, top - 9, { x: 0 });
    for (const [value, y] of [
      [most, top],
      [0, top + size],
    ]) {
      plot.append(draw("line", { class: "grid", x1: 0, x2: n * cell, y1: y, y2: y }));
      label(value.toFixed(value ? digits : 0), y + 4);
    }
  };
  const tallest = Math.max(1, ...trace.heights);
  axis(heightsTop, heightRow, tallest, "height", 1);
  const points = trace.heights.map((h, t) => `${(t + 0.5) * cell},${heightsTop + heightRow * (1 - h / tallest)}`);
  plot.append(
    draw("polyline", {
      points: points.join(" "),
      fill: "none",
      stroke: "var(--accent)",
      "stroke-width": 2,
      "stroke-linejoin": "round",
    }),
  );
  const most = Math.max(0.05, ...text.loss.map((x) => x ?? 0));
  if (text.loss.length) axis(lossTop, lossRow, most, text.lossName, 2);
  text.loss.forEach((value, t) => {
    if (value === null) return;
    const size = Math.max(0, (lossRow * value) / most);
    plot.append(
      draw(
        "rect",
        {
          x: t * cell + 4,
          y: lossTop + lossRow - size,
          width: cell - 8,
          height: size,
          fill: "var(--second)",
        },
        draw("title", {}, `${value.toFixed(3)} nats`),
      ),
    );
  });
  plot.addEventListener("click", (event) => {
    const t = Math.floor((event.clientX - plot.getBoundingClientRect().left) / cell);
    if (t >= 0 && t < n) go(t);
  });
  box.replaceChildren(make("div", { class: "frame" }, labels, plot));
  return (step) => {
    mark.setAttribute("x", step * cell);
    keepInView(box, "Left", step * cell, cell, left);
  };
}

function attentionMap(box, text, rows, bottom, withoutBottom, go) {
  const n = text.tokens.length,
    columns = withoutBottom ? text.tokens : [bottom, ...text.tokens];
  const left = Math.ceil(roomFor(text.tokens)) + 12;
  const cell = Math.max(14, Math.min(24, Math.floor((box.clientWidth - left - 4) / columns.length)));
  const top = headHeight(columns, cell);
  const width = columns.length * cell + 2,
    height = n * cell + 2;
  const corner = sheet("stays-left stays-top", left, top, { "aria-hidden": "true" });
  const header = sheet("stays-top", width, top, { "aria-hidden": "true" });
  const labels = sheet("stays-left clickable", left, height, { "aria-hidden": "true" });
  const plot = sheet("plot clickable", width, height, {
    role: "img",
    "aria-label": "Weight of each past token at each step",
  });
  heads(header, columns, cell, top);
  text.tokens.forEach((token, t) =>
    labels.append(
      draw(
        "text",
        { class: "symbol", x: left - 6, y: (t + 0.5) * cell + 4, "text-anchor": "end" },
        short(token),
        draw("title", {}, `step ${t}: ${token}`),
      ),
    ),
  );
  plot.append(
    draw("rect", {
      x: 0.5,
      y: 0.5,
      width: columns.length * cell,
      height: n * cell,
      fill: "none",
      stroke: "var(--line)",
    }),
  );
  rows.forEach((row, t) =>
    row.slice(withoutBottom ? 1 : 0).forEach((weight, i) => {
      if (weight < 5) return;
      plot.append(
        draw(
          "rect",
          {
            x: i * cell,
            y: t * cell,
            width: cell,
            height: cell,
            fill: "var(--ink)",
            "fill-opacity": Math.sqrt(weight / 1000).toFixed(3),
          },
          draw("title", {}, `step ${t}, ${columns[i]}: ${(weight / 1000).toFixed(2)}`),
        ),
      );
    }),
  );
  if (text.real !== null && !withoutBottom)
    text.real.forEach((real, t) => {
      const weight = rows[t][real + 1] ?? 0;
      plot.append(
        draw("circle", {
          cx: (real + 1.5) * cell,
          cy: (t + 0.5) * cell,
          r: cell / 3.4,
          fill: "none",
          stroke: weight > 300 ? "var(--paper)" : "var(--ink)",
          "stroke-width": 1.2,
        }),
      );
    });
  const mark = draw("rect", {
    x: 1,
    width: columns.length * cell,
    height: cell,
    fill: "none",
    stroke: "var(--accent)",
    "stroke-width": 2,
    rx: 2,
  });
  plot.append(mark);
  for (const part of [labels, plot])
    part.addEventListener("click", (event) => {
      const t = Math.floor((event.clientY - plot.getBoundingClientRect().top) / cell);
      if (t >= 0 && t < n) go(t);
    });
  box.replaceChildren(make("div", { class: "frame" }, corner, header, labels, plot));
  return (step) => {
    mark.setAttribute("y", step * cell);
    const row = rows[step].slice(withoutBottom ? 1 : 0);
    keepInView(box, "Top", step * cell, cell, top);
    keepInView(box, "Left", Math.max(0, row.indexOf(Math.max(...row))) * cell, cell, left);
  };
}

// Legend of the shades. The square root makes small weights visible.
function scale() {
  const svg = draw("svg", { width: 210, height: 30, role: "img", "aria-label": "Scale of the weights" });
  [0, 0.1, 0.25, 0.5, 1].forEach((weight, i) => {
    svg.append(
      draw("rect", {
        x: 1 + 40 * i,
        y: 1,
        width: 36,
        height: 12,
        fill: "var(--ink)",
        "fill-opacity": Math.sqrt(weight),
        stroke: "var(--line)",
      }),
    );
    svg.append(draw("text", { class: "quietly", x: 19 + 40 * i, y: 26, "text-anchor": "middle" }, String(weight)));
  });
  return svg;
}

// Scroll the box, not the page, until the given position of the plot is visible and not covered by labels.
function keepInView(box, side, position, size, labels) {
  const room = (side === "Left" ? box.clientWidth : box.clientHeight) - labels,
    at = box[`scroll${side}`];
  if (position < at || position + size > at + room) box[`scroll${side}`] = position - room / 2;
}
