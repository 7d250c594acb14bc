// The figures of one string. Each returns a function that moves its mark to a step.

function timeline(box, text, trace, go) {
  const n = text.tokens.length,
    cell = Math.max(18, Math.min(30, Math.floor(1000 / n)));
  const left = 66,
    heightRow = 74,
    lostRow = 48,
    gap = 22;
  const actionsTop = 20,
    actionsBottom = actionsTop + 3 * cell;
  const heightsTop = actionsBottom + gap,
    lostTop = heightsTop + heightRow + gap;
  const width = left + n * cell + 10,
    height = lostTop + lostRow + 6;
  const svg = draw("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": "Actions, expected height and nats lost at each step",
  });
  const mark = draw("rect", {
    y: 2,
    width: cell,
    height: height - 4,
    fill: "var(--accent)",
    "fill-opacity": 0.16,
    rx: 3,
  });
  svg.append(mark);
  const x = (t) => left + t * cell;
  text.tokens.forEach((token, t) => {
    svg.append(
      draw(
        "text",
        { class: "symbol", x: x(t + 0.5), y: 14, "text-anchor": "middle", "font-size": fontFor(token, cell) },
        token,
      ),
    );
    (trace.actions[t] ?? []).forEach((weight, i) => {
      svg.append(
        draw(
          "rect",
          {
            x: x(t) + 0.5,
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
    });
  });
  trace.actionNames.forEach((name, i) =>
    svg.append(
      draw("text", { class: "quietly", x: left - 8, y: actionsTop + (i + 0.5) * cell + 4, "text-anchor": "end" }, name),
    ),
  );

  const axis = (top, size, most, name, digits) => {
    svg.append(draw("text", { class: "quietly", x: 0, y: top - 7 }, name));
    for (const [value, y] of [
      [most, top],
      [0, top + size],
    ]) {
      svg.append(draw("line", { class: "grid", x1: left, x2: x(n), y1: y, y2: y }));
      svg.append(
        draw(
          "text",
          { class: "quietly", x: left - 8, y: y + 4, "text-anchor": "end" },
          value.toFixed(value ? digits : 0),
        ),
      );
    }
  };
  const tallest = Math.max(1, ...trace.heights);
  axis(heightsTop, heightRow, tallest, "height", 1);
  const points = trace.heights.map((h, t) => `${x(t + 0.5)},${heightsTop + heightRow * (1 - h / tallest)}`);
  svg.append(
    draw("polyline", {
      points: points.join(" "),
      fill: "none",
      stroke: "var(--accent)",
      "stroke-width": 2,
      "stroke-linejoin": "round",
    }),
  );
  const most = Math.max(0.05, ...text.lost.map((x) => x ?? 0));
  axis(lostTop, lostRow, most, "nats lost", 2);
  text.lost.forEach((value, t) => {
    if (value === null) return;
    const size = Math.max(0, (lostRow * value) / most);
    svg.append(
      draw(
        "rect",
        { x: x(t) + 4, y: lostTop + lostRow - size, width: cell - 8, height: size, fill: "var(--second)" },
        draw("title", {}, `${value.toFixed(3)} nats`),
      ),
    );
  });
  svg.classList.add("clickable");
  svg.addEventListener("click", (event) => {
    const t = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / cell);
    if (t >= 0 && t < n) go(t);
  });
  box.replaceChildren(svg);
  return (step) => {
    mark.setAttribute("x", x(step));
    keepInView(box, x(step), cell);
  };
}

function attentionMap(box, text, rows, bottom, withoutBottom, go) {
  const n = text.tokens.length,
    columns = withoutBottom ? text.tokens : [bottom, ...text.tokens];
  const cell = Math.max(10, Math.min(22, Math.floor(560 / columns.length))),
    left = 40,
    top = 26;
  const width = left + columns.length * cell + 4,
    height = top + n * cell + 4;
  const svg = draw("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": "Weight of each past token at each step",
  });
  const size = Math.min(12, cell - 1);
  columns.forEach((token, i) => {
    if (fontFor(token, cell) < 6) return; // BOS, where columns are narrow: its row has the name
    svg.append(
      draw(
        "text",
        {
          class: "symbol quietly",
          x: left + (i + 0.5) * cell,
          y: top - 6,
          "text-anchor": "middle",
          "font-size": Math.min(size, fontFor(token, cell)),
        },
        token,
      ),
    );
  });
  text.tokens.forEach((token, t) => {
    svg.append(
      draw(
        "text",
        {
          class: "symbol quietly",
          x: left - 6,
          y: top + (t + 0.5) * cell + size / 3,
          "text-anchor": "end",
          "font-size": size,
        },
        token,
      ),
    );
  });
  svg.append(
    draw("rect", {
      x: left,
      y: top,
      width: columns.length * cell,
      height: n * cell,
      fill: "none",
      stroke: "var(--line)",
    }),
  );
  const mark = draw("rect", {
    x: left - 2,
    width: columns.length * cell + 4,
    height: cell,
    fill: "none",
    stroke: "var(--accent)",
    "stroke-width": 2,
    rx: 2,
  });
  rows.forEach((row, t) =>
    row.slice(withoutBottom ? 1 : 0).forEach((weight, i) => {
      if (weight < 5) return;
      svg.append(
        draw(
          "rect",
          {
            x: left + i * cell,
            y: top + t * cell,
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
      svg.append(
        draw("circle", {
          cx: left + (real + 1.5) * cell,
          cy: top + (t + 0.5) * cell,
          r: cell / 3.4,
          fill: "none",
          stroke: weight > 300 ? "var(--paper)" : "var(--ink)",
          "stroke-width": 1.2,
        }),
      );
    });
  svg.append(mark);
  svg.classList.add("clickable");
  svg.addEventListener("click", (event) => {
    const t = Math.floor((event.clientY - svg.getBoundingClientRect().top - top) / cell);
    if (t >= 0 && t < n) go(t);
  });
  box.replaceChildren(svg);
  return (step) => mark.setAttribute("y", top + step * cell);
}

// As large as fits, at 0.6 of the font size for each character.
function fontFor(token, width) {
  return Math.min(12, (1.6 * width) / token.length).toFixed(1);
}

// What the shades mean: the square root lifts small weights out of the paper.
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

function keepInView(box, position, size) {
  if (position < box.scrollLeft + 70 || position + size > box.scrollLeft + box.clientWidth)
    box.scrollLeft = position - box.clientWidth / 2;
}
